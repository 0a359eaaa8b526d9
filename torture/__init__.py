"""Torture tests: long, repeatable attempts to make rbegir lose, invent or misread a keyword.

    python -m torture powerloss --points 100000 --seed 1 --out benchmarks/results/torture-powerloss.json
    make torture                        all of them, for hours if you let it

| attempt     | what is done to the index                                              | module         |
|-------------|------------------------------------------------------------------------|----------------|
| powerloss   | the power is cut after every call to a disk that forgets               | `powerloss.py` |
| kill        | a real process is killed with −9 at random moments                     | `kill.py`      |
| bitrot      | every bit is flipped, every file cut at every byte                     | `bitrot.py`    |
| salvage     | random blocks are damaged, what is intact must come back               | `salvage.py`   |
| resources   | no space, no handles, broken reads and writes, at every single call    | `resources.py` |
| fuzz        | every loader reads hostile bytes, guided by coverage                   | `fuzz.py`      |
| frontdoor   | requests and files that cost a service more than they are worth        | `frontdoor.py` |
| exact       | every kernel and mode against the reference, in hard worlds            | `exact.py`     |
| features    | filters, pages, items, tenants and joins against plain NumPy           | `features.py`  |
| codes       | texts and vectors encoded in other batches, by other threads and CPUs   | `codes.py`     |
| crowd       | readers, threads, forks and rival writers beside a writer              | `crowd.py`     |
| soak        | a service under load, killed, restarted, out of disk, with wrong clocks| `soak.py`      |

Every attempt writes one JSON object with what it tried and what it lost, which must be nothing.
docs/reliability.md is made from the committed ones. tests/torture runs a short version of each.
"""
