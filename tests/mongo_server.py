"""A small server of MongoDB's wire protocol, of our own: what an upload asks for, on loopback, in memory.

It is no MongoDB: of queries it knows equality, of updates $set and $setOnInsert, of logins SCRAM-SHA-256.
Formats: https://www.mongodb.com/docs/manual/reference/mongodb-wire-protocol, RFC 5802 and RFC 7677.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import bson

OP_REPLY, OP_QUERY, OP_MSG = 1, 2004, 2013
ITERATIONS, SALT = 4096, b"salt of the tests"
OPEN = ("hello", "ismaster", "ping", "saslstart", "saslcontinue", "endsessions")


class Mongo(socketserver.ThreadingTCPServer):
    """The server: `collections` by database and name, `indexes` that were made, `users` who have to log in.

    A document of which `refuse` returns words is refused with them; the connection ends after `writes` requests.
    """

    allow_reuse_address = daemon_threads = True

    def __init__(self, users: dict[str, str]) -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        self.users = users
        self.collections: dict[str, list[dict]] = {}
        self.indexes: list[tuple[str, ...]] = []
        self.batches: list[int] = []
        self.refuse = lambda document: ""
        self.refuse_index = ""
        self.writes = 1_000_000
        self.largest = 1 << 24  # bytes of a document
        self.lock = threading.Lock()

    @property
    def port(self) -> int:
        return self.server_address[1]


@contextmanager
def mongo_server(**users: str) -> Iterator[Mongo]:
    """Yield a server that has these users with their passwords, or lets everybody in."""
    with Mongo(users) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class Connection(socketserver.StreamRequestHandler):
    """One connection, and who is logged in on it."""

    server: Mongo

    def handle(self) -> None:
        self.user, self.first, self.nonce = "", b"", b""
        while head := self.rfile.read(16):
            length, request, _, kind = struct.unpack("<iiii", head)
            body = self.rfile.read(length - 16)
            with self.server.lock:
                answer = self.answer(command(kind, body))
            if answer is None:
                return
            data = bson.encode(answer)
            reply = OP_REPLY if kind == OP_QUERY else OP_MSG
            start = struct.pack("<iqii", 8, 0, 0, 1) if kind == OP_QUERY else b"\0" * 5
            self.wfile.write(struct.pack("<iiii", 16 + len(start) + len(data), 0, request, reply) + start + data)

    def answer(self, asked: dict) -> dict | None:
        name = next(iter(asked)).lower()
        if self.server.users and not self.user and name not in OPEN:
            return failure(13, "Unauthorized", f"command {name} requires authentication")
        if name in ("insert", "update"):
            self.server.writes -= 1
            if self.server.writes < 0:
                return None
        known = getattr(self, f"do_{name}", None)
        return known(asked) if known else failure(59, "CommandNotFound", f"no such command: '{name}'")

    def do_hello(self, asked: dict) -> dict:
        largest = self.server.largest
        sizes = {"maxBsonObjectSize": largest, "maxMessageSizeBytes": 3 * largest, "maxWriteBatchSize": 100_000}
        mechanisms = {"saslSupportedMechs": ["SCRAM-SHA-256"]} if "saslSupportedMechs" in asked else {}
        return {
            **{"isWritablePrimary": True, "ismaster": True, "helloOk": True, "minWireVersion": 0, "maxWireVersion": 21},
            **{**sizes, **mechanisms, "logicalSessionTimeoutMinutes": 30, "ok": 1.0},
        }

    do_ismaster = do_hello

    def do_ping(self, asked: dict) -> dict:
        return {"ok": 1.0}

    do_endsessions = do_ping

    def do_saslstart(self, asked: dict) -> dict:
        self.first = bytes(asked["payload"]).partition(b",,")[2]
        self.nonce = fields(self.first)[b"r"] + base64.b64encode(os.urandom(18))
        self.challenge = b"r=%s,s=%s,i=%d" % (self.nonce, base64.b64encode(SALT), ITERATIONS)
        return {"conversationId": 1, "done": False, "payload": self.challenge, "ok": 1.0}

    def do_saslcontinue(self, asked: dict) -> dict:
        payload = bytes(asked["payload"])
        if not payload:
            return {"conversationId": 1, "done": True, "payload": b"", "ok": 1.0}
        said, user = fields(payload), fields(self.first)[b"n"].decode()
        salted = hashlib.pbkdf2_hmac("sha256", self.server.users.get(user, "").encode(), SALT, ITERATIONS)
        signed = b",".join((self.first, self.challenge, payload.rpartition(b",p=")[0]))
        key = mac(salted, b"Client Key")
        signature = mac(hashlib.sha256(key).digest(), signed)
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        if user not in self.server.users or not hmac.compare_digest(base64.b64decode(said[b"p"]), proof):
            return failure(18, "AuthenticationFailed", "Authentication failed.")
        self.user = user
        verifier = base64.b64encode(mac(mac(salted, b"Server Key"), signed))
        return {"conversationId": 1, "done": True, "payload": b"v=" + verifier, "ok": 1.0}

    def do_createindexes(self, asked: dict) -> dict:
        if self.server.refuse_index:
            return failure(86, "IndexKeySpecsConflict", self.server.refuse_index)
        self.server.indexes += [tuple(one["key"]) for one in asked["indexes"]]
        return {"ok": 1.0}

    def do_insert(self, asked: dict) -> dict:
        there = self._collection(asked, "insert")
        self.server.batches.append(len(asked["documents"]))
        taken = [one for one in asked["documents"] if not self.server.refuse(one)]
        there += taken
        return {"n": len(taken), "ok": 1.0, **self._errors(asked["documents"])}

    def do_update(self, asked: dict) -> dict:
        there = self._collection(asked, "update")
        self.server.batches.append(len(asked["updates"]))
        n, changed, upserted = 0, 0, []
        for index, one in enumerate(asked["updates"]):
            if self.server.refuse(one["u"]["$set"]):
                continue
            n += 1
            same = [each for each in there if all(each.get(name) == value for name, value in one["q"].items())]
            if same:
                changed += same[0] != {**same[0], **one["u"]["$set"]}
                same[0].update(one["u"]["$set"])
            else:
                new = {"_id": bson.ObjectId(), **one["q"], **one["u"].get("$setOnInsert", {}), **one["u"]["$set"]}
                there.append(new)
                upserted.append({"index": index, "_id": new["_id"]})
        told = {"upserted": upserted} if upserted else {}
        return {
            "n": n,
            "nModified": changed,
            "ok": 1.0,
            **told,
            **self._errors(one["u"]["$set"] for one in asked["updates"]),
        }

    def _collection(self, asked: dict, name: str) -> list[dict]:
        return self.server.collections.setdefault(f"{asked['$db']}.{asked[name]}", [])

    def _errors(self, documents) -> dict:
        words = [self.server.refuse(one) for one in documents]
        found = [{"index": n, "code": 121, "errmsg": text} for n, text in enumerate(words) if text]
        return {"writeErrors": found} if found else {}


def command(kind: int, body: bytes) -> dict:
    """Return the command of a message; documents that follow it belong to the name they are sent under."""
    if kind == OP_QUERY:  # the first words of a client that knows no other server yet
        return bson.decode(body[body.index(b"\0", 4) + 9 :])
    asked, at = {}, 4
    while at < len(body):
        section, at = body[at], at + 1
        if section == 0:
            size = struct.unpack_from("<i", body, at)[0]
            asked = {**bson.decode(body[at : at + size]), **asked}
        else:
            size = struct.unpack_from("<i", body, at)[0]
            end = body.index(b"\0", at + 4)
            asked[body[at + 4 : end].decode()] = bson.decode_all(body[end + 1 : at + size])
        at += size
    return asked


def fields(text: bytes) -> dict[bytes, bytes]:
    return {part[:1]: part[2:] for part in text.split(b",")}


def mac(key: bytes, text: bytes) -> bytes:
    return hmac.new(key, text, hashlib.sha256).digest()


def failure(code: int, name: str, words: str) -> dict:
    return {"ok": 0.0, "code": code, "codeName": name, "errmsg": words}
