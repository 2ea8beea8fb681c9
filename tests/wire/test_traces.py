"""OpenTelemetry spans: a collector in the test parses what the binary sends, with the protocol's published classes."""

import gzip
import json
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from harness import MODEL, Server, cli, open_stream, wait_until
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """An OTLP collector over HTTP."""

    def __init__(self, status: int = 200):
        self.status, self.requests, self.headers = status, [], []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                message = ExportTraceServiceRequest()
                message.ParseFromString(body)
                assert self.path == "/v1/traces" and self.headers["content-type"] == "application/x-protobuf"
                collector.headers.append(dict(self.headers))
                collector.requests.append(message)
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(collector.status)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.http.server_port}/v1/traces"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def spans(self) -> list[Span]:
        return [span for request in self.requests for of in request.resource_spans for scope in of.scope_spans for span in scope.spans]

    def trace(self, id: str, count: int) -> dict[str, Span]:
        """Waits for `count` spans of the trace with the request `id`. Returns them by name."""
        of_request = lambda: [span for span in self.spans() if attributes(span).get("penstock.request.id") == id]
        of_trace = lambda: [span for root in of_request() for span in self.spans() if span.trace_id == root.trace_id]
        wait_until(lambda: len(of_trace()) >= count, 20, f"{count} spans of {id}: {[span.name for span in of_trace()]}")
        assert len(of_trace()) == count, of_trace()
        return {span.name: span for span in of_trace()}

    def close(self):
        self.http.shutdown()
        self.http.server_close()


def attributes(span) -> dict:
    value = lambda any_value: getattr(any_value, any_value.WhichOneof("value"))
    return {pair.key: value(pair.value) for pair in span.attributes}


@pytest.fixture(scope="module")
def traced():
    collector = Collector()
    settings = {"ENDPOINT": collector.endpoint, "SERVICE": "tested", "HEADERS": "x-key=secret"}
    config = {"SERVER__DEFAULT_MODELS": MODEL, "ENGINE__CONTEXT": "4096", **{f"TRACES__{key}": value for key, value in settings.items()}}
    with Server(config, ("--log-format", "json")) as server:
        yield server, collector
    collector.close()


def ask(server, id: str, traceparent: str | None = None, **fields):
    headers = {"x-request-id": id, **({"traceparent": traceparent} if traceparent else {})}
    body = {"model": MODEL, "prompt": "The quick brown fox", "max_tokens": 8, "temperature": 0, **fields}
    return server.post("/v1/completions", body, headers=headers)


def new_id() -> str:
    return f"trace-{uuid.uuid4().hex}"


def test_a_request_has_spans_of_queue_prefill_and_decode(traced):
    server, collector = traced
    id, before = new_id(), time.time_ns()
    usage = ask(server, id, f"00-{TRACE}-{PARENT}-01", stream=False).json()["usage"]
    spans = collector.trace(id, 4)
    assert set(spans) == {"POST /v1/completions", "queue", "prefill", "decode"}
    root = spans["POST /v1/completions"]
    assert root.kind == Span.SPAN_KIND_SERVER and (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE, PARENT)
    assert root.status.code == Status.STATUS_CODE_UNSET
    told = attributes(root)
    assert (told["http.request.method"], told["http.route"], told["http.response.status_code"]) == ("POST", "/v1/completions", 200)
    assert (told["gen_ai.request.model"], told["gen_ai.response.finish_reasons"], told["penstock.outcome"]) == (MODEL, "length", "ok")
    counts = (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"])
    assert counts == (usage["prompt_tokens"], usage["completion_tokens"])
    phases = [spans[name] for name in ("queue", "prefill", "decode")]
    assert all(phase.parent_span_id == root.span_id and phase.trace_id == root.trace_id for phase in phases)
    times = [root.start_time_unix_nano]
    for phase in phases:
        times += [phase.start_time_unix_nano, phase.end_time_unix_nano]
    times.append(root.end_time_unix_nano)
    assert times == sorted(times), "the phases follow each other within the request"
    assert abs(times[0] - before) < 5e9 and phases[0].end_time_unix_nano == phases[1].start_time_unix_nano
    assert attributes(spans["decode"])["gen_ai.usage.output_tokens"] == 8
    resource = attributes(collector.requests[-1].resource_spans[0].resource)
    assert resource["service.name"] == "tested" and resource["service.version"]
    assert collector.headers[-1]["x-key"] == "secret"


def test_the_log_line_names_the_trace(traced):
    server, collector = traced
    id = new_id()
    ask(server, id)
    root = collector.trace(id, 4)["POST /v1/completions"]
    assert root.parent_span_id == b"", "without a traceparent, the request starts a trace"
    lines = [json.loads(line) for line in open(server.log.name) if line.startswith("{")]
    line = next(line for line in lines if line.get("id") == id)
    assert line["trace"] == root.trace_id.hex()


def test_each_choice_has_its_own_phases(traced):
    server, collector = traced
    id = new_id()
    ask(server, id, n=3)
    of_request = lambda: [span for span in collector.spans() if attributes(span).get("penstock.request.id") == id]
    wait_until(of_request, 20, "the request's span has arrived")
    trace = of_request()[0].trace_id
    names = lambda: sorted(span.name for span in collector.spans() if span.trace_id == trace)
    wanted = sorted(["POST /v1/completions"] + 3 * ["queue", "prefill", "decode"])
    wait_until(lambda: names() == wanted, 20, f"each choice has its phases: {names()}")


def test_an_unsampled_parent_suppresses_spans_and_a_malformed_one_is_ignored(traced):
    server, collector = traced
    id, after = new_id(), new_id()
    reply = ask(server, id, f"00-{TRACE}-{PARENT}-00")
    assert reply.headers["traceparent"] == f"00-{TRACE}-{PARENT}-00"
    ask(server, after, "00-this-is-none-01")
    root = collector.trace(after, 4)["POST /v1/completions"]
    assert root.parent_span_id == b"" and root.trace_id.hex() != TRACE
    assert not [span for span in collector.spans() if attributes(span).get("penstock.request.id") == id]


def test_a_refusal_and_a_client_that_disconnects_have_spans(traced):
    server, collector = traced
    refused, left = new_id(), new_id()
    ask(server, refused, temperature=9)
    told = attributes(collector.trace(refused, 1)["POST /v1/completions"])
    assert (told["error.type"], told["penstock.refused_field"], told["penstock.outcome"]) == ("invalid_value", "temperature", "refused")
    body = {"model": MODEL, "prompt": "x", "max_tokens": 2000, "stream": True, "ignore_eos": True}
    with open_stream(server, "/v1/completions", body) as stream:
        assert stream.recv(100)
        time.sleep(0.2)
    gone = lambda: [span for span in collector.spans() if attributes(span).get("penstock.outcome") == "left"]
    wait_until(gone, 20, "the span of the disconnected client has arrived")
    decode = lambda: [span for span in collector.spans() if span.trace_id == gone()[0].trace_id and span.name == "decode"]
    wait_until(decode, 5, "the decode span has arrived")
    assert 0 < attributes(decode()[0])["gen_ai.usage.output_tokens"] < 2000


def test_the_last_spans_are_sent_when_the_server_ends():
    collector = Collector()
    with Server({"SERVER__DEFAULT_MODELS": MODEL, "TRACES__ENDPOINT": collector.endpoint, "TRACES__SAMPLE": "1"}) as server:
        id = new_id()
        ask(server, id)
    assert [span for span in collector.spans() if attributes(span).get("penstock.request.id") == id]
    collector.close()


def test_a_share_of_zero_traces_only_sampled_parents():
    collector = Collector()
    with Server({"SERVER__DEFAULT_MODELS": MODEL, "TRACES__ENDPOINT": collector.endpoint, "TRACES__SAMPLE": "0"}) as server:
        alone, followed = new_id(), new_id()
        ask(server, alone)
        ask(server, followed, f"00-{TRACE}-{PARENT}-01")
    roots = [span for span in collector.spans() if span.kind == Span.SPAN_KIND_SERVER]
    assert [attributes(span)["penstock.request.id"] for span in roots if "gen_ai.request.model" in attributes(span)] == [followed]
    collector.close()


@pytest.mark.parametrize("how", ["refuses", "is gone"])
def test_a_failing_collector_loses_spans_and_delays_nothing(how):
    collector = Collector(status=401)
    endpoint = collector.endpoint
    if how == "is gone":
        collector.close()
    with Server({"SERVER__DEFAULT_MODELS": MODEL, "TRACES__ENDPOINT": endpoint}) as server:
        start = time.monotonic()
        for _ in range(5):
            assert ask(server, new_id()).status == 200
        assert time.monotonic() - start < 30
        wait_until(lambda: server.metrics().get(("penstock_trace_exports_failed_total", ()), 0) > 0, 30, "the loss is counted")
        wait_until(lambda: "spans are lost" in server.output(), 5, "the loss is logged")
        assert server.output().count("spans are lost") == 1
    if how == "refuses":
        collector.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [("ENDPOINT", "collector:4318"), ("ENDPOINT", "grpc://collector/x"), ("SAMPLE", "2"), ("HEADERS", "nothing"), ("TIMEOUT_SECONDS", "0")],
)
def test_a_wrong_setting_is_named(name, value):
    done = cli("serve", "--port", "0", env={f"TRACES__{name}": value}, timeout=20)
    assert done.returncode == 1 and f"traces.{name.lower()}" in done.stderr, done.stderr
