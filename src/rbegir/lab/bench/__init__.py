"""Speed and accuracy, beside peers and the machine's limit in the same run.

| module                  | what is measured                                                               |
|-------------------------|--------------------------------------------------------------------------------|
| scan, scan_gpu          | exhaustive search on the CPU, on a GPU                                         |
| encode, train           | texts per second, pairs per second                                             |
| accuracy                | recall of codes at equal bytes; quantizers and residual are its peers          |
| hits                    | recall of the hits that a user gets, beside methods that need no training      |
| serve, load             | the HTTP service under load, and the load generator                            |
| cluster                 | overhead, scaling and fault tolerance of a cluster                             |
| peers, databases        | other systems in processes of their own: for scan, for serve                   |
| host                    | the machine that a benchmark ran on, clocks and progress                       |
"""
