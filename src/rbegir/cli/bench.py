"""`rbegir bench`: speed, with peers and the machine's limit in the same run."""

from __future__ import annotations

import typer

from rbegir.cli.bench_accuracy import accuracy
from rbegir.cli.bench_ann import ann
from rbegir.cli.bench_cluster import cluster
from rbegir.cli.bench_costs import costs
from rbegir.cli.bench_encode import encode
from rbegir.cli.bench_scan import scan
from rbegir.cli.bench_serve import serve
from rbegir.cli.bench_train import train

app = typer.Typer(no_args_is_help=True, help="Speed, with peers and the machine's limit in the same run.")
app.command("scan")(scan)
app.command("encode")(encode)
app.command("train")(train)
app.command("accuracy")(accuracy)
app.command("ann")(ann)
app.command("serve")(serve)
app.command("cluster")(cluster)
app.command("costs")(costs)
