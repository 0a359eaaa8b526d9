"""`python -m rbegir`: the command line, for `torchrun -m rbegir train …` and places without a PATH."""

from rbegir.cli import main

if __name__ == "__main__":
    main()
