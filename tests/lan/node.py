"""One machine of the test's network: a server that holds containers open and runs commands in them.

A container is a process that holds a mount and a process namespace of its own; its root is a layer over the image, a
folder.  A request is a line of JSON and a payload, its answer lines of JSON with payloads.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import selectors
import shutil
import signal
import socketserver
import subprocess
import sys
import tarfile
import threading
from contextlib import suppress
from pathlib import Path

import psutil

HOLD = """
set -eu
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/changes,workdir=$2/aside" "$2/root"
mkdir -p "$2/root$3"
mount --bind "$2/workspace" "$2/root$3"
mount --rbind /dev "$2/root/dev"
mount -t proc proc "$2/root/proc"
exec chroot "$2/root" sh -c "echo ready; exec sleep infinity"
"""
TOOLS = str(Path(sys.executable).parent)  # py-spy is there
PATH = f"{TOOLS}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Container:
    """One session's part on this node."""

    def __init__(self, home: Path, image: str, inside: str, files: bytes) -> None:
        self.home, self.inside = home, inside
        self.running: subprocess.Popen[bytes] | None = None
        self.last = {"state": "running", "code": None}
        for name in ("changes", "aside", "root", "workspace"):
            (home / name).mkdir(parents=True)
        with tarfile.open(fileobj=io.BytesIO(files)) as tar:
            tar.extractall(home / "workspace", filter="fully_trusted")
        self.holder = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", HOLD, "hold", image, home, inside],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        if self.holder.stdout.readline() != b"ready\n":
            raise OSError(f"image {image} cannot be mounted")
        (self.pid,) = (child.pid for child in psutil.Process(self.holder.pid).children())

    def start(self, argv: list[str], cwd: str, env: dict[str, str]) -> subprocess.Popen[bytes]:
        enter = ["nsenter", "--target", str(self.pid), "--mount", "--pid", "--root", "--wd"]
        inside = ["setsid", "sh", "-c", 'cd "$0" && exec "$@"', cwd, *argv]
        return subprocess.Popen(
            [*enter, *inside],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={"PATH": PATH, "HOME": "/root", **env},
        )

    def signal(self, number: int) -> None:
        """Signal the group of the command that runs, or with KILL all of the container but its holder."""
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            if number == signal.SIGKILL:
                for process in psutil.process_iter():
                    if process.pid != self.pid and self.has(process.pid):
                        process.kill()
            elif self.running is not None:
                for child in psutil.Process(self.running.pid).children():
                    os.killpg(os.getpgid(child.pid), number)

    def has(self, pid: int) -> bool:
        try:
            return os.stat(f"/proc/{pid}/ns/pid").st_ino == os.stat(f"/proc/{self.pid}/ns/pid").st_ino
        except OSError:
            return False

    def close(self) -> None:
        """End all of it: the first process of a namespace takes the others with it."""
        with suppress(psutil.NoSuchProcess):
            psutil.Process(self.pid).kill()
        self.holder.wait()
        shutil.rmtree(self.home, ignore_errors=True)
        if self.last["state"] == "running":
            self.last = {"state": "gone", "code": None}


class Node(socketserver.ThreadingTCPServer):
    allow_reuse_address, daemon_threads = True, True

    def __init__(self, home: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.home, self.silent = home, False
        self.containers: dict[str, Container] = {}
        self.ended: dict[str, dict] = {}


class Answer(socketserver.StreamRequestHandler):
    """One request."""

    def handle(self) -> None:
        request = json.loads(self.rfile.readline())
        try:
            getattr(self, "do_" + request.pop("do"))(**request)
        except KeyError as error:
            self.say(problem=f"no session {error}")
        except OSError as error:
            self.say(problem=str(error))

    def say(self, data: bytes = b"", **words: object) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):
            self.wfile.write(json.dumps({**words, "bytes": len(data)}).encode() + b"\n" + data)

    def do_open(self, session: str, image: str, inside: str, size: int) -> None:
        files = self.rfile.read(size)
        if self.server.silent:
            self.rfile.read()  # until the caller hangs up
            return
        self.server.containers[session] = Container(self.server.home / session, image, inside, files)
        self.say(done=True)

    def do_run(self, session: str, argv: list[str], cwd: str, env: dict[str, str]) -> None:
        container = self.server.containers[session]
        running = container.running = container.start(argv, cwd, env)
        self._pass_on(running)
        code = running.wait()
        container.running = None
        container.last = {"state": "running", "code": code}
        self.say(code=code)

    def _pass_on(self, running: subprocess.Popen[bytes]) -> None:
        """Pass output on while the command runs; what a child holds open after that is left alone."""
        with selectors.DefaultSelector() as pipes:
            for number, pipe in ((1, running.stdout), (2, running.stderr)):
                pipes.register(pipe, selectors.EVENT_READ, number)
            while pipes.get_map():
                ready = pipes.select(0.1)
                for key, _ in ready:
                    if data := os.read(key.fd, 1 << 16):
                        self.say(data, stream=key.data)
                    else:
                        pipes.unregister(key.fileobj)
                if not ready and running.poll() is not None:
                    return

    def do_signal(self, session: str, number: int) -> None:
        self.server.containers[session].signal(number)
        self.say(done=True)

    def do_probe(self, session: str, argv: list[str], limit_s: float) -> None:
        probe = self.server.containers[session].start(argv, "/", {})
        try:
            out, err = probe.communicate(timeout=limit_s)
            code = probe.returncode
        except subprocess.TimeoutExpired:
            for child in psutil.Process(probe.pid).children(recursive=True):
                child.kill()
            out, err = probe.communicate()
            code = None
        self.say(out, code=code)
        self.say(err, end=True)

    def do_collect(self, session: str, patterns: list[str]) -> None:
        root = self.server.containers[session].home / "workspace"
        files = io.BytesIO()
        with tarfile.open(fileobj=files, mode="w") as tar:
            for path in {path for pattern in patterns for path in root.glob(pattern)}:
                if path.is_file() and not path.is_symlink() and path.resolve().is_relative_to(root):
                    tar.add(path, path.name)
        self.say(files.getvalue(), end=True)

    def do_state(self, session: str) -> None:
        held = self.server.containers.get(session)
        self.say(**(held.last if held is not None else self.server.ended.get(session, {"state": ""})))

    def do_leave(self) -> None:
        """End as a machine that loses its power does: nothing more is said, and nothing goes on."""
        for container in list(self.server.containers.values()):
            container.close()
        os._exit(0)

    def do_close(self, session: str) -> None:
        if (container := self.server.containers.pop(session, None)) is not None:
            container.close()
            code = container.last["code"]
            self.server.ended[session] = {"state": "COMPLETED" if not code else "FAILED", "code": code}
        self.say(done=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("home", type=Path)
    parser.add_argument("--silent", action="store_true", help="never answer a request to open a session")
    given = parser.parse_args()
    with Node(given.home) as node:
        node.silent = given.silent
        threading.Thread(target=node.serve_forever, daemon=True).start()
        print(node.server_address[1], flush=True)
        with suppress(EOFError):
            input()  # whoever started it holds this pipe
        for container in list(node.containers.values()):
            container.close()


if __name__ == "__main__":
    main()
