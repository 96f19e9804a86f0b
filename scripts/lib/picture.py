"""picture.py DDRUN FOLDER [NAME…]: runs torchrun and ddrun in a terminal each and draws both screens, in files of FOLDER."""
import fcntl
import html
import importlib.metadata
import itertools
import os
import pathlib
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time

import pyte

COLUMNS, ROWS, LIMIT = 100, 24, 60  # LIMIT: seconds for one run
CELL, LINE, MARGIN, TITLE = 8, 17, 14, 32  # pixels
BLOCKS = " ▏▎▍▌▋▊▉█"  # eighths of a cell, which fonts make of several widths
PICTURES = {  # train.py, and what a row shows when the screen is taken; None: the end of the run
    "failure": ('import glob, os, time\n\ndef load(path):\n    return open(path)\n\nopen("at" + os.environ["RANK"], "w").close()\n'
                'while len(glob.glob("at?")) < 4:\n    time.sleep(0.001)\nload("/data/train.bin")\n', None),
    "progress": ("import os, time\nfrom tqdm import tqdm\n\nrank = int(os.environ['RANK'])\n"
                 "for step in tqdm(range(40), desc=f'rank{rank}'):\n    time.sleep(0.05 * (1 + rank * 0.2))\n",
                 r"rank3: +[4-9]\d%"),
    "hang": ('import datetime, os, sys, time\nimport torch, torch.distributed as dist\n\ndef load_batch(step):\n'
             '    if os.environ["RANK"] == "2" and step == 3:\n        time.sleep(1000)  # a file server that does not answer\n\n'
             'sys.tracebacklimit = 0\ndist.init_process_group("gloo", timeout=datetime.timedelta(seconds=5))\nfor step in range(100):\n'
             '    load_batch(step)\n    dist.all_reduce(torch.ones(1))\n', None),
}
# Of a job on three machines, which are hosts by their names only: where its ranks are.
MACHINES = ('import os, time\nimport torch, torch.distributed as dist\n\ndef load_batch(step):\n'
            '    if os.environ["RANK"] == "12" and step == 3:\n        time.sleep(1000)  # a file server that does not answer\n\n'
            'dist.init_process_group("gloo")\nfor step in range(100):\n    load_batch(step)\n    dist.all_reduce(torch.ones(1))\n')
COLOURS = ("text", "window", "frame", "title", "red", "green", "brown", "blue", "magenta", "cyan")
LIGHT = "#1f2328 #f6f8fa #d1d9e0 #59636e #cf222e #116329 #7d4e00 #0969da #8250df #1b7c83".split()
DARK = "#e6edf3 #161b22 #3d444d #9198a1 #ff7b72 #7ee787 #e3b341 #79c0ff #d2a8ff #76e3ea".split()
FONT = "text{white-space:pre;font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace}.bold{font-weight:bold}"


def theme(values):
    return ("rect,text{{fill:{}}}.window{{fill:{};stroke:{}}}".format(*values) +
            "".join(f".{name}{{fill:{value}}}" for name, value in zip(COLOURS[3:], values[3:])))


def screen_of(command, folder, until):
    """The terminal after the command, or as soon as a row matches `until`."""
    screen = pyte.HistoryScreen(COLUMNS, ROWS, history=10000)
    stream = pyte.ByteStream(screen)
    stream.feed(f"$ {' '.join(command)}\r\n".encode())
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        os.chdir(folder)
        os.execvpe(command[0], command, {**os.environ, "TERM": "xterm-256color", "OMP_NUM_THREADS": "1"})
    screen.write_process_input = lambda answer: os.write(terminal, answer.encode())
    give_up = time.monotonic() + LIMIT
    while not (until and any(re.search(until, row) for row in screen.display)):
        if not select.select([terminal], [], [], max(0, give_up - time.monotonic()))[0]:
            os.kill(pid, signal.SIGKILL)
            raise TimeoutError(f"{' '.join(command)}: after {LIMIT} s not at {until or 'its end'}")
        try:
            stream.feed(os.read(terminal, 65536))
        except OSError:  # EIO: the last process with this terminal has ended
            stream.feed(b"$ ")
            break
    else:
        os.kill(pid, signal.SIGTERM)
    os.close(terminal)
    os.waitpid(pid, 0)
    return screen


def draw_row(cells, top):
    """Runs of one style, each at the columns that it has in the terminal."""
    at = MARGIN
    for (colour, bold, block), run in itertools.groupby(
            cells, lambda char: (char.fg.removeprefix("bright"), char.bold, char.data in BLOCKS[1:])):
        text = "".join(char.data for char in run)
        shown, left = text.strip(), at + CELL * (len(text) - len(text.lstrip()))
        style = f' class="{colour if colour in COLOURS else "plain"}{" bold" if bold else ""}"' if colour in COLOURS or bold else ""
        style += f' style="fill:#{colour}"' if re.fullmatch("[0-9a-f]{6}", colour) else ""
        if block:
            width = sum(CELL * BLOCKS.index(char) / 8 for char in text)
            yield f'<rect{style} x="{left}" y="{top + 2}" width="{width:g}" height="{LINE - 4}"/>'
        elif shown:
            yield f'<text{style} x="{left}" y="{top + 13}" textLength="{CELL * len(shown)}">{html.escape(shown)}</text>'
        at += CELL * len(text)


def draw_window(launcher, version, screen, top):
    """One window as lines of SVG, and where it ends."""
    used = max(row for row in range(ROWS) if screen.display[row].strip(" $")) + 1
    title = launcher + version + (f", the last {used} of {hidden + used} rows" if (hidden := len(screen.history.top)) else "")
    height = TITLE + used * LINE + MARGIN
    lines = [f'<g id="{launcher}">', f'<rect class="window" x="0.5" y="{top + 0.5}" width="{COLUMNS * CELL + 2 * MARGIN - 1}" '
             f'height="{height - 1}" rx="8"/>', f'<text class="title" x="{MARGIN}" y="{top + 21}">{title}</text>']
    for row in range(used):
        lines += draw_row([screen.buffer[row][column] for column in range(COLUMNS)], top + TITLE + row * LINE)
    return [*lines, "</g>"], top + height


def picture(program, until):
    lines, top = [], -12
    for launcher, version in (("torchrun", " " + importlib.metadata.version("torch")), ("ddrun", "")):
        with tempfile.TemporaryDirectory(prefix="job-") as folder:
            (pathlib.Path(folder) / "train.py").write_text(program, encoding="utf-8")
            screen = screen_of([launcher, "--nproc-per-node=4", "train.py"], folder, until)
        window, top = draw_window(launcher, version, screen, top + 12)
        lines += window
    return drawing(lines, top)


def drawing(lines, bottom):
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" xml:space="preserve" viewBox="0 0 {COLUMNS * CELL + 2 * MARGIN} {bottom}">',
                      f"<style>{FONT}{theme(LIGHT)}@media(prefers-color-scheme:dark){{{theme(DARK)}}}</style>", *lines, "</svg>", ""])


def machines_picture():
    """`ddrun stacks` on the first of three machines."""
    with tempfile.TemporaryDirectory(prefix="job-") as folder, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        (pathlib.Path(folder) / "train.py").write_text(MACHINES, encoding="utf-8")
        os.environ.update(XDG_RUNTIME_DIR=folder, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
        agents = [subprocess.Popen(
            ["unshare", "--map-root-user", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', f"node{node + 1}", "ddrun", "--nnodes=3",
             "--nproc-per-node=8", "--insecure", f"--rdzv-endpoint=127.0.0.1:{port}", f"--node-rank={node}", "train.py"], cwd=folder)
            for node in range(3)]
        give_up = time.monotonic() + LIMIT
        while "ranks 0-11,13-23 wait for" not in subprocess.run(["ddrun", "stacks"], capture_output=True, text=True).stdout:
            if time.monotonic() > give_up:
                raise TimeoutError(f"the ranks of three machines are not where they are to be after {LIMIT} s")
            time.sleep(1)
        screen = screen_of(["ddrun", "stacks"], folder, None)
        for agent in agents:
            agent.terminate()
        for agent in agents:
            agent.wait()
    lines, bottom = draw_window("ddrun", " on node1", screen, 0)
    return drawing(lines, bottom)


os.environ["PATH"] = f"{pathlib.Path(sys.argv[1]).resolve().parent}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
chosen = sys.argv[3:] or [*PICTURES, "machines"]
for name in chosen:
    path = pathlib.Path(sys.argv[2]) / f"{name}.svg"
    path.write_text(machines_picture() if name == "machines" else picture(*PICTURES[name]), encoding="utf-8")
    print(f"{path}: {path.stat().st_size} bytes")
