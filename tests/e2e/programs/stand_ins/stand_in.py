"""What the stand-ins share. Their first argument is ROLE:NUMBER. FAIL="ROLE:NUMBER HOW WHEN" ends one of them, once in each
OUTPUT_DIR: HOW is an exit code or the name of a signal, WHEN the seconds since its start, or a file in OUTPUT_DIR and the
end comes when it exists. Without OUTPUT_DIR no file is written."""
import os
import pathlib
import signal
import socketserver
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler

OUTPUT = pathlib.Path(os.environ["OUTPUT_DIR"]) if "OUTPUT_DIR" in os.environ else None


def setting(name, default):
    return float(os.environ.get(name, default))


def say(what, when=None):
    """A line that ends with the seconds since boot, which the kernel's time of a process's start counts too."""
    print(f"{what} at {when or time.clock_gettime(time.CLOCK_BOOTTIME):.3f}", flush=True)


def wait_for(file):
    while OUTPUT and not (OUTPUT / file).exists():
        time.sleep(0.01)


def begin(name):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    started = int(pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    say("starts", started / os.sysconf("SC_CLK_TCK"))
    chosen, *fate = os.environ.get("FAIL", "none").split()
    if chosen == name:
        threading.Thread(target=fail, args=fate, daemon=True).start()


def fail(how, when):
    if when.replace(".", "").isdigit():
        time.sleep(float(when))
    else:
        wait_for(when)
    try:
        if OUTPUT:
            (OUTPUT / "failed").touch(exist_ok=False)
    except FileExistsError:
        return
    say("fails")
    if how.isdigit():
        os._exit(int(how))
    os.kill(os.getpid(), getattr(signal, how))


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True


def serve(port, answer):
    """Answers GET PATH with answer(PATH), a status and a text; until SIGTERM, which ends it with 0."""
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            status, text = answer(self.path)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            pass

    server = Server(("127.0.0.1", int(port)), Handler)
    say("listens")
    server.serve_forever()
