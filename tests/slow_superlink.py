"""A SuperLink's runtime API on the loopback interface, whose nodes answer as a test says: at once, late, dripping or never.

It speaks Flower's own messages over HTTP, so that Flower's own grid fetches the replies.
"""

import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedResponse, PullObjectRequest, PullObjectResponse
from flwr.proto.runtime_pb2 import (
    PullAppMessagesRequest,
    PullAppMessagesResponse,
)
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.run import Run
from flwr.superlink.grid import HttpGrid

from server.exchange import THREAD

PATH = "/v1/runtime/"
DRIPS, NEVER = "drips", "never"  # announced: its bytes come one by one, or no part of it is ever there


class SlowSuperLink:
    """Answers to messages: `nodes` says for each node id after how many seconds it does, `DRIPS` or `NEVER`.

    None is a node that does not even announce a reply.
    """

    def __init__(self, nodes):
        self.nodes = nodes
        self.asked, self.replies, self.objects, self.confirmed = {}, {}, {}, []
        self.begun, self.over = time.monotonic(), threading.Event()

    def take(self, messages):
        """Keep what is asked, and make each node's reply."""
        self.begun = time.monotonic()
        for message in messages:
            self.asked[message.metadata.message_id] = message
            self.replies[message.metadata.message_id] = self.reply_to(message)

    def reply_to(self, message):
        content = RecordDict({"r": ConfigRecord({"from": message.metadata.dst_node_id})})
        reply = Message(content, reply_to=message)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        for number, part in get_all_nested_objects(reply).items():
            self.objects[number] = message.metadata.dst_node_id, part.deflate()
        return reply

    def announced(self, question):
        """Return the reply to a question if its node has announced one."""
        how = self.nodes[self.asked[question].metadata.dst_node_id]
        if how is None or (not isinstance(how, str) and time.monotonic() - self.begun < how):
            return None
        return self.replies[question]

    def respond(self, name, body, write):
        if name == "pull-messages":
            questions = PullAppMessagesRequest.FromString(body).message_ids
            found = [reply for reply in map(self.announced, questions) if reply is not None]
            bare = [message_to_proto(remove_content_from_message(reply)) for reply in found]
            trees = [get_object_tree(reply) for reply in found]
            answer = PullAppMessagesResponse(messages_list=bare, message_object_trees=trees)
        elif name == "pull-object":
            node, part = self.objects[PullObjectRequest.FromString(body).object_id]
            is_there = self.nodes[node] != NEVER
            answer = PullObjectResponse(
                object_found=True, object_available=is_there, object_content=part if is_there else b""
            )
            if self.nodes[node] == DRIPS:
                return self.drip(answer.SerializeToString(), write)
        else:
            self.confirmed.append(name)
            answer = ConfirmMessageReceivedResponse()
        return write(answer.SerializeToString())

    def drip(self, data, write):
        """Send a byte every tenth of a second: no timeout between two of them ever ends it."""
        write(b"", len(data))
        for place in range(len(data)):
            if self.over.wait(0.1):
                return write(data[place:], None)
            write(data[place : place + 1], None)
        return None


class _Grid(HttpGrid):
    """Flower's grid, but for the way of the tasks, which is of no interest here."""

    def push_messages(self, messages):
        messages = list(messages)
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
        self.link.take(messages)
        return [message.metadata.message_id for message in messages]


@contextmanager
def slow_superlink(nodes):
    """Start the server, and yield it with Flower's grid for it."""
    link = SlowSuperLink(nodes)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            try:
                link.respond(self.path.removeprefix(PATH), body, self.write)
            except OSError:  # the other side is gone
                self.close_connection = True

        def write(self, data, length=0):
            if length is not None:
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(length or len(data)))
                self.end_headers()
            self.wfile.write(data)
            self.wfile.flush()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    grid = _Grid(f"127.0.0.1:{server.server_port}", insecure=True, token="t")
    grid.link = link
    grid.set_run(Run.create_empty(1))
    try:
        yield link, grid
    finally:
        link.over.set()
        for node in nodes:  # pulls that nobody waits for find their replies and end
            nodes[node] = 0
        for thread in threading.enumerate():
            if thread.name == THREAD:
                thread.join(20)
        grid.close()
        server.shutdown()
        server.server_close()
