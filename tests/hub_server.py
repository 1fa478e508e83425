"""A loopback server that answers as the Hugging Face hub does, with its ways of failing.

Invariant: it speaks the hub's protocol and knows nothing of edgespec, so that the hub's own
client is what the tests exercise.
"""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NEXT_COMMIT = COMMIT[::-1]


@dataclass
class HubServer:
    """Use as a context manager; `url` is the HF_ENDPOINT to give to a client.

    files: (repo, file name) -> bytes. They are large files to the hub: a HEAD request tells
        their SHA-256 and sends the client on to another address.
    small: names of files that git itself keeps: sent at once, with git's hash of them.
    gated: repositories that ask for a licence. broken: answers 503 to everything. refused: the
        status that everything is answered with, as if for its token; 0: none.
    corrupt: sends other bytes of the same length; damaged: names of files of which it does so.
        truncate: closes the connection after so many bytes, that many times; stall: sends no more
        behind so many, until the server is stopped. length: how it writes a large file's.
    moves_to: what a file is in the branch's next commit, which is there from the second look on.
    Each request is in `log` as "METHOD path".
    """

    files: dict[tuple[str, str], bytes] = field(default_factory=dict)
    small: set[str] = field(default_factory=set)
    gated: set[str] = field(default_factory=set)
    broken: bool = False
    refused: int = 0
    corrupt: bool = False
    damaged: set[str] = field(default_factory=set)
    truncate: int = 0
    truncate_bytes: int = 1000
    stall: bool = False
    length: str = "{}"
    moves_to: bytes | None = None
    commit: str = COMMIT
    log: list[str] = field(default_factory=list)
    url: str = ""
    cdn_url: str = ""

    def __enter__(self) -> HubServer:
        hub = self

        class Handler(_Handler):
            state = hub

        self.stopped = threading.Event()
        # Two, as the hub keeps large files on another host, which clients treat differently.
        self._servers = [ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2)]
        self.url, self.cdn_url = (f"http://127.0.0.1:{s.server_address[1]}" for s in self._servers)
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.02,)).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop listening: from now on the hub can't be reached."""
        self.stopped.set()
        while self._servers:
            server = self._servers.pop()
            server.shutdown()
            server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: HubServer

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *args: object) -> None:
        pass

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.state.log.append(f"{self.command} {path}")
        if self.state.broken:
            self._send(503, {})
            return
        if self.state.refused:
            self._send(self.state.refused, {"X-Error-Message": "Invalid credentials"})
            return
        if path.startswith("/cdn/"):
            owner, name, file = path.removeprefix("/cdn/").split("/", 2)
            content = self.state.files.get((f"{owner}/{name}", file))
            self._content(content, damaged=self.state.corrupt or file in self.state.damaged)
            return
        if path.startswith("/api/models/"):
            self._listing(path)
            return
        match path.removeprefix("/").split("/", 4):
            case owner, name, "resolve", revision, file:
                self._resolve(f"{owner}/{name}", revision, file)
            case _:
                self._send(404, {})

    def _resolve(self, repo: str, revision: str, file: str) -> None:
        if repo in self.state.gated:
            self._fail(401, "GatedRepo", f"Access to model {repo} is restricted.")
            return
        if repo not in {known for known, _ in self.state.files}:
            self._fail(401, "RepoNotFound", "Repository not found")
            return
        if revision not in ("main", COMMIT, NEXT_COMMIT):
            self._fail(404, "RevisionNotFound", "Invalid rev id")
            return
        commit, content = self.state.commit, self.state.files.get((repo, file))
        if self.state.moves_to is not None:
            self.state.files[repo, file], self.state.moves_to = self.state.moves_to, None
            self.state.commit = NEXT_COMMIT
        if content is None:
            self._fail(404, "EntryNotFound", "Entry not found")
            return
        if file in self.state.small:
            git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            self._send(200, {"X-Repo-Commit": commit, "ETag": f'"{git}"'}, content)
            return
        sha256 = hashlib.sha256(content).hexdigest()
        headers = {
            "X-Repo-Commit": commit,
            "X-Linked-Size": str(len(content)),
            "X-Linked-ETag": f'"{sha256}"',
            "Accept-Ranges": "bytes",
            "Location": f"{self.state.cdn_url}/cdn/{repo}/{file}",
        }
        self._send(302, headers)

    def _content(self, content: bytes | None, *, damaged: bool) -> None:
        if content is None:
            self._send(404, {})
            return
        if damaged:
            content = bytes(byte ^ 1 for byte in content)
        status, start = 200, 0
        headers = {"Accept-Ranges": "bytes", "Content-Length": str(len(content))}
        if wanted := self.headers.get("Range"):
            start = int(wanted.removeprefix("bytes=").split("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            headers["Content-Length"] = str(len(content) - start)
            status = 206
        headers["Content-Length"] = self.state.length.format(headers["Content-Length"])
        self._send(status, headers, None)
        if self.command == "GET":
            if self.state.truncate > 0:
                self.state.truncate -= 1
                self.wfile.write(content[start : start + self.state.truncate_bytes])
                self.close_connection = True
            elif self.state.stall:
                self.wfile.write(content[start : start + self.state.truncate_bytes])
                self.state.stopped.wait()
                self.close_connection = True
            else:
                self.wfile.write(content[start:])

    def _listing(self, path: str) -> None:
        owner, name, *rest = path.removeprefix("/api/models/").split("/")
        repo = f"{owner}/{name}"
        if repo not in {known for known, _ in self.state.files}:
            self._fail(401, "RepoNotFound", "Repository not found")
            return
        if rest[:1] == ["revision"] and rest[1] not in ("main", COMMIT):
            self._fail(404, "RevisionNotFound", "Invalid rev id")
            return
        listing = [
            {"type": "file", "path": file, "size": len(content), "oid": COMMIT}
            for (known, file), content in self.state.files.items()
            if known == repo
        ]
        body = json.dumps(listing).encode()
        if rest[:1] != ["tree"]:  # about the repository, its files among the rest
            siblings = [{"rfilename": file["path"], "size": file["size"]} for file in listing]
            body = json.dumps({"id": repo, "sha": COMMIT, "siblings": siblings}).encode()
        self._send(200, {"Content-Type": "application/json"}, body)

    def _fail(self, status: int, code: str, message: str) -> None:
        self._send(status, {"X-Error-Code": code, "X-Error-Message": message})

    def _send(self, status: int, headers: dict[str, str], body: bytes | None = b"") -> None:
        self.send_response(status)
        if body is not None:
            headers = {**headers, "Content-Length": str(len(body))}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if body and self.command != "HEAD":
            self.wfile.write(body)
