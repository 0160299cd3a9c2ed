"""The command serve: a live service over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cordgt.cli import console
from cordgt.cli.options import Device, RunDir, flag, option
from cordgt.errors import SettingError

INSTALL_HINT = "`cordgt serve` needs more packages. Install them: pip install 'cordgt[serve]'"


def serve(
    run: RunDir,
    host: Annotated[str, option("HOST", "Address to listen on. Others than 127.0.0.1 need tokens.")] = "127.0.0.1",
    port: Annotated[int, option("PORT", "Port to listen on; 0: a free one.", min=0, max=65535)] = 8000,
    data_dir: Annotated[
        Path | None, option("DIR", "Folder of the event log and the models.", show_default="RUN.service")
    ] = None,
    late: Annotated[
        str, option("WORD", "Events earlier than the last one: refuse, or accept them with the last one's time.")
    ] = "refuse",
    log: Annotated[
        str, option("URL", "Event log in PostgreSQL: postgresql://HOST/NAME", show_default="SQLite in DIR")
    ] = "",
    insecure: Annotated[bool, flag("--insecure", "Allow requests from other hosts without tokens.")] = False,
    device: Device = "auto",
) -> None:
    """Answer questions over HTTP while events arrive. http://HOST:PORT/ has a page, /docs lists the requests.

    $CORDGT_READ_TOKEN and $CORDGT_WRITE_TOKEN are the tokens that clients need.
    """
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise SettingError(INSTALL_HINT) from None
    from cordgt.serving.security import Tokens, check_bind
    from cordgt.serving.server import run_server
    from cordgt.serving.service import Service, ServiceOptions

    tokens = Tokens.from_environment()
    check_bind(host, tokens, insecure=insecure)
    folder = data_dir or run.with_name(f"{run.absolute().name}.service")
    options = ServiceOptions(folder, late=late, device=device, log_url=log)
    console.print_note(f"Loading {run} and the event log in {folder}.")
    service = Service(run, options)
    run_server(service, host, port, tokens=tokens, insecure=insecure)
