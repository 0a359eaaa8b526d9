"""The HTTP service inside the cluster: Ray Serve hosts the same app as `rbegir serve`.

    serve run rbegir.cluster.http:application index=/shared/ads.rbe shards=4 replicas=2 copies=2

Each copy of the service is a client of its own; all of them share the shards. Ray Serve restarts copies,
spreads requests over them and listens on every node. Its HTTP front is not ours: anyone who reaches the port
is answered, whatever the Host header says. So tokens are needed in the environment of the nodes:
RBEGIR_READ_TOKEN and, unless the service is read-only, RBEGIR_WRITE_TOKEN. A copy sees changes that went
through another one after `refresh_s` if it is read-only, and after its own next change otherwise: let one
copy write.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rbegir.cluster.client import Cluster
from rbegir.cluster.session import import_ray
from rbegir.errors import InputError, whole_number

if TYPE_CHECKING:
    from starlette.applications import Starlette

RESERVED = 0.1  # cores a copy reserves with Ray


def build(index: str, shards: int | None, replicas: int, read_only: bool) -> Starlette:
    """The app, made in the process of a copy."""
    from rbegir.serve.app import create_app
    from rbegir.serve.auth import load_token
    from rbegir.serve.server import check_exposure
    from rbegir.serve.settings import Settings

    settings = Settings(
        read_token=load_token("read", None), write_token=load_token("write", None), read_only=read_only
    )
    check_exposure("of Ray Serve", settings)
    devices = "auto" if shards is None else shards
    app = create_app(Cluster.open(index, replicas=replicas, devices=devices), settings)
    app.state.catalog.prepare()
    return app


def application(arguments: dict[str, Any]) -> Any:
    """A Ray Serve application from `name=value` arguments: index, shards, replicas, copies, read_only."""
    import_ray()
    from ray import serve

    known = {"index", "shards", "replicas", "copies", "read_only"}
    if "index" not in arguments or not arguments.keys() <= known:
        raise InputError(
            f"the application takes index= and perhaps {', '.join(sorted(known - {'index'}))}, "
            f"got {', '.join(arguments) or 'nothing'}",
            hint="serve run rbegir.cluster.http:application index=/shared/ads.rbe shards=4",
        )
    index = str(arguments["index"])
    asked = (
        index if "://" in index else str(Path(index).absolute()),
        _whole(arguments, "shards", None),
        _whole(arguments, "replicas", 1) or 1,
        str(arguments.get("read_only", "false")).lower() in ("true", "1", "yes"),
    )

    def built() -> Starlette:  # Ray Serve calls a function in each copy; anything else it takes for an app
        return build(*asked)

    deployment: Any = serve.deployment(
        serve.ingress(built)(),
        name="rbegir",
        num_replicas=_whole(arguments, "copies", 1),
        ray_actor_options={"num_cpus": RESERVED},
    )
    return deployment.bind()


def _whole(arguments: dict[str, Any], name: str, default: int | None) -> int | None:
    value = arguments.get(name, default)
    return None if value is None else whole_number(name, int(value) if str(value).isdecimal() else value)
