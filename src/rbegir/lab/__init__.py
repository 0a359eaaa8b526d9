"""Research and measurement: nothing in the product imports it, only the command line does.

| module                 | the question it answers                                                         |
|------------------------|---------------------------------------------------------------------------------|
| bench/                 | how fast and how accurate is it, beside peers and the machine's limit?           |
| reproduce/             | do the paper's tables hold on our data?                                          |
| plan                   | how many machines does a service of a given size take?                           |
| annbench               | how does it do on a data set of ann-benchmarks?                                  |
| bag, cbow, hashing     | does recurrent binary embedding work on networks other than CLSM?                |
| figures                | how do figures vary over seeds, and how do they get into pages?                   |
"""
