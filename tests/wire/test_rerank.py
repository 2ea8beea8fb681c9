"""/v1/rerank and /score with a ranking model (compared with sentence-transformers), with an embedding model, and with a generative
model."""

import math
from unittest.mock import ANY

import pytest
from harness import CODER, MODEL, Server
from test_embeddings_models import BERT, DECODER, LAYOUTS, RANKER, zoo  # noqa: F401 (a fixture)

QUERY = "Which river flows through Vienna?"
DOCUMENTS = ["Oslo lies at the end of a fjord.", "The river Danube flows through Vienna.", "Bread is made of flour."]
PATHS = ["/v1/rerank", "/v2/rerank", "/rerank"]


def ranked(server, path="/v1/rerank", **fields):
    reply = server.post(path, {"model": MODEL, "query": QUERY, "documents": DOCUMENTS, **fields})
    assert reply.status == 200, reply.body
    return reply.json()


@pytest.fixture(scope="module")
def coder():
    with Server({"SERVER__DEFAULT_MODELS": CODER, "ENGINE__CONTEXT": "512"}) as server:
        yield server


def test_a_ranking_model_gives_the_scores_of_sentence_transformers(zoo):  # noqa: F811
    (layout,) = (layout for layout in LAYOUTS if layout["name"] == RANKER)
    pairs, want = layout["pairs"], layout["scores"]
    first, second = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    body = {"model": RANKER, "text_1": first, "text_2": second}
    logits = zoo.post("/score", {**body, "use_activation": False}).json()
    assert [item["index"] for item in logits["data"]] == list(range(len(pairs))) and logits["object"] == "list"
    assert all(abs(item["score"] - due) < 1e-4 for item, due in zip(logits["data"], want, strict=True)), (logits, want)
    scores = [item["score"] for item in zoo.post("/v1/score", body).json()["data"]]
    assert all(abs(score - 1 / (1 + math.exp(-due))) < 1e-4 for score, due in zip(scores, want, strict=True))
    query = first[0]
    documents = [document for asked, document in pairs if asked == query]
    due = sorted((due for (asked, _), due in zip(pairs, want) if asked == query), reverse=True)
    results = zoo.post("/rerank", {"model": RANKER, "query": query, "documents": documents, "use_activation": False}).json()["results"]
    assert all(abs(result["relevance_score"] - score) < 1e-4 for result, score in zip(results, due, strict=True))


@pytest.mark.parametrize("name", [BERT, DECODER])
def test_an_embedding_model_compares_vectors(zoo, name):  # noqa: F811
    texts = ["the gate opens", "water runs", "the gate opens"]
    vectors = [item["embedding"] for item in zoo.post("/v1/embeddings", {"model": name, "input": texts}).json()["data"]]
    due = [sum(x * y for x, y in zip(vectors[0], vector)) for vector in vectors]
    scores = zoo.post("/score", {"model": name, "text_1": texts[0], "text_2": texts}).json()
    assert all(abs(item["score"] - cosine) < 1e-5 for item, cosine in zip(scores["data"], due, strict=True))
    tokens = sum(zoo.post("/tokenize", {"model": name, "prompt": text}).json()["count"] for text in set(texts))
    assert scores["usage"]["prompt_tokens"] == tokens, "equal texts are computed once"


@pytest.mark.real_models
def test_a_generative_model_judges_each_document(coder):
    results = ranked(coder, model=CODER)["results"]
    assert results[0]["index"] == 1 and all(0 <= result["relevance_score"] <= 1 for result in results), results
    scores = [result["relevance_score"] for result in results]
    assert scores == sorted(scores, reverse=True) and sorted(result["index"] for result in results) == [0, 1, 2]


@pytest.mark.real_models
def test_the_score_is_the_odds_of_yes_against_no(coder):
    """Computes the same score from outside: from the log-probabilities of both answers after the same prompt."""
    body = {"model": CODER, "text_1": QUERY, "text_2": DOCUMENTS[1], "use_activation": False}
    score = coder.post("/score", body).json()["data"][0]["score"]
    system = (
        "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
        'Note that the answer can only be "yes" or "no".'
    )
    instruct = "Given a web search query, retrieve relevant passages that answer the query"
    user = f"<Instruct>: {instruct}\n<Query>: {QUERY}\n<Document>: {DOCUMENTS[1]}"
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    found = {}
    for answer in ("yes", "no"):
        body = {"model": CODER, "messages": messages, "max_tokens": 1, "temperature": 0, "logprobs": True, "choice": [answer]}
        (token,) = coder.post("/v1/chat/completions", body).json()["choices"][0]["logprobs"]["content"]
        found[answer] = token["logprob"]
    assert abs(score - (found["yes"] - found["no"])) < 1e-3, (score, found)


def test_each_path_and_each_option_works(server):
    whole = ranked(server)
    assert whole["id"].startswith("rerank-") and whole["model"] == MODEL and whole["usage"]["total_tokens"] > 0
    for path in PATHS:
        assert ranked(server, path)["results"] == whole["results"], "the same bits on each path"
    assert ranked(server, top_n=1)["results"] == whole["results"][:1]
    assert ranked(server, top_n=100)["results"] == whole["results"]
    assert ranked(server, top_n=0)["results"] == whole["results"], "0 returns all"
    shown = ranked(server, return_documents=True, documents=[DOCUMENTS[0], {"text": DOCUMENTS[1]}])["results"]
    assert {result["index"]: result["document"] for result in shown} == {0: {"text": DOCUMENTS[0]}, 1: {"text": DOCUMENTS[1]}}
    assert all("document" not in result for result in whole["results"])


@pytest.mark.parametrize("name", [RANKER, BERT, DECODER, CODER])
def test_a_document_is_truncated_to_what_fits(zoo, coder, name):  # noqa: F811
    server = coder if name == CODER else zoo
    document = "water runs under the old gate " * 3

    def score(text, **fields):
        reply = server.post("/v1/rerank", {"model": name, "query": "the gate opens", "documents": [text], **fields})
        return reply.json() if reply.status == 200 else reply.error

    long = document + "and the gate opens, " * 8000
    assert "context" in score(long)["message"]
    whole = score(document)
    # Bounds beyond the text change nothing. -1 takes the most tokens that fit.
    assert score(document, max_tokens_per_doc=1000, truncate_prompt_tokens=-1) == whole | {"id": ANY}
    few = score(long, max_tokens_per_doc=5)
    wordy = {"model": name, "query": "the gate opens and water runs under it", "documents": ["the gate"]}
    assert server.post("/rerank", wordy).json()["results"] == server.post("/rerank", {**wordy, "max_tokens_per_doc": 6}).json()["results"]
    assert few["usage"]["prompt_tokens"] < whole["usage"]["prompt_tokens"] and few["results"] != whole["results"]
    most = score(long, truncate_prompt_tokens=-1)["usage"]["prompt_tokens"]
    # An embedding model reads query and document separately.
    alone = name in (BERT, DECODER)
    bound = 8 if alone else whole["usage"]["prompt_tokens"] - 4
    cut = score(long, truncate_prompt_tokens=bound)
    assert most > bound and 0 < cut["usage"]["prompt_tokens"] <= bound * (2 if alone else 1)
    assert cut["results"] == score(document + "and", truncate_prompt_tokens=bound)["results"]
    if name != DECODER:  # this model adds no tokens around a text
        refused = score(document, truncate_prompt_tokens=1)
        assert refused["param"] == "documents" and "may have 1 tokens" in refused["message"]


@pytest.mark.parametrize(
    "path, fields, param",
    [
        ("/v1/rerank", {"documents": []}, "documents"),
        ("/v1/rerank", {"documents": [""]}, "documents"),
        ("/v1/rerank", {"documents": [5]}, "documents[0]"),
        ("/v1/rerank", {"documents": "text"}, "documents"),
        ("/v1/rerank", {"query": ""}, "query"),
        ("/v1/rerank", {"query": None}, "query"),
        ("/v1/rerank", {"top_n": -1}, "top_n"),
        ("/v1/rerank", {"top_n": -(2**31)}, "top_n"),
        ("/v1/rerank", {"return_documents": 1}, "return_documents"),
        ("/v1/rerank", {"max_tokens_per_doc": 0}, "max_tokens_per_doc"),
        ("/v1/rerank", {"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ("/score", {"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ("/v1/rerank", {"documents": ["word " * 20_000]}, "documents"),
        ("/score", {"text_1": ["a", "b"]}, "text_1"),
        ("/score", {"text_2": None}, "text_2"),
        ("/score", {"text_1": {}}, "text_1"),
    ],
)
def test_bad_input_names_the_field(server, path, fields, param):
    base = {"query": "q", "documents": ["d"]} if "rerank" in path else {"text_1": "a", "text_2": "b"}
    reply = server.post(path, {"model": MODEL, **base, **fields})
    assert reply.status == 400 and reply.error["param"] == param, reply.body


def test_an_unknown_model_is_not_found(server):
    assert server.post("/v1/rerank", {"model": "nope", "query": "q", "documents": ["d"]}).status == 404
