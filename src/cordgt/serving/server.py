"""Run the web server of a service until it is told to stop."""

from __future__ import annotations

import logging
import signal
import socket
import threading
from types import FrameType

import uvicorn

from cordgt.errors import CordgtError, SettingError
from cordgt.serving.app import create_app
from cordgt.serving.security import Tokens
from cordgt.serving.service import Service
from cordgt.serving.telemetry import set_up_logging

logger = logging.getLogger("cordgt.serving")
SHUTDOWN_SECONDS = 20
KEEP_ALIVE_SECONDS = 75  # longer than a proxy keeps idle connections (nginx: 60), or it would send into closed ones


def run_server(service: Service, host: str, port: int, *, tokens: Tokens | None = None, insecure: bool = False) -> None:
    """Serve until SIGTERM or Ctrl-C; requests under way are finished. SIGHUP loads the run again."""
    set_up_logging()
    try:
        app = create_app(service, tokens=tokens, insecure=insecure)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            server_header=False,
        )
        with _listen(host, port) as listener:
            _set_signal_handlers(service)
            address = listener.getsockname()
            fields = {"host": address[0], "port": address[1], "cut": service.cut, "model": service.model.id}
            logger.info("ready", extra={"fields": fields})
            uvicorn.Server(config).run(sockets=[listener])
    finally:
        service.close()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # With the protocol named, asyncio sets TCP_NODELAY; without, every answer waits for 40 ms.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
        return listener
    except OSError as error:
        raise SettingError(f"Cannot listen on {host}:{port}: {error.strerror}. Use another --host or --port.") from None


def _set_signal_handlers(service: Service) -> None:
    """Load the run again on SIGHUP. Ignore SIGTERM and SIGINT here: uvicorn handles them, then sends them once more."""

    def reload() -> None:
        try:
            service.swap_model()
        except CordgtError as error:
            logger.error("the model was not changed", extra={"fields": {"reason": str(error)}})

    def on_hangup(signum: int, frame: FrameType | None) -> None:
        threading.Thread(target=reload, name="cordgt-reload", daemon=True).start()

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, on_hangup)
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, lambda signum, frame: None)
