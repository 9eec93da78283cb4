"""The served API through the real openai package: shapes, streams, choices, logprobs, errors, concurrency."""

import concurrent.futures
import json

import openai
import pytest

GREEDY = dict(temperature=0)


@pytest.fixture(scope="session")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=600) as made:
        yield made


def chat(client, text, **options):
    options = {"model": "any-name", "max_tokens": 24, "seed": 7} | options
    return client.chat.completions.create(messages=[{"role": "user", "content": text}], **options)


def joined(stream):
    """(text, finish_reason) of a chat stream."""
    text, reason = "", None
    for chunk in stream:
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
            reason = chunk.choices[0].finish_reason or reason
    return text, reason


def test_models(client, server):
    listed = client.models.list().data
    assert [model.id for model in listed] == ["tiny-llama"]
    assert client.models.retrieve("tiny-llama").owned_by == "pagoda"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no-such-model")


def test_chat_has_every_field(client):
    answer = chat(client, "hello")
    choice = answer.choices[0]
    assert answer.id.startswith("chatcmpl-") and answer.object == "chat.completion" and answer.created > 1_700_000_000
    assert answer.model == "tiny-llama" and answer.system_fingerprint
    assert choice.index == 0 and choice.message.role == "assistant" and choice.message.refusal is None
    assert choice.message.annotations == []
    assert choice.finish_reason in ("stop", "length")
    usage = answer.usage
    assert 0 < usage.completion_tokens <= 24 and usage.prompt_tokens > 0
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens >= 0


def test_stream_equals_whole_answer(client):
    whole = chat(client, "tell me a story", **GREEDY)
    text, reason = joined(chat(client, "tell me a story", stream=True, **GREEDY))
    assert text == whole.choices[0].message.content
    assert reason == whole.choices[0].finish_reason


def test_stream_shape(client):
    chunks = list(chat(client, "hello", stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[0].choices[0].delta.content == ""
    assert len({chunk.id for chunk in chunks}) == 1 and len({chunk.created for chunk in chunks}) == 1
    assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 0
    assert chunks[-2].choices[0].finish_reason in ("stop", "length")
    assert sum(1 for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason) == 1


def test_continuous_usage(client):
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(chat(client, "hello", stream=True, stream_options=options))
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts) and counts[0] == 0 and all(chunk.usage.prompt_tokens > 0 for chunk in chunks)


def test_seeds_repeat_and_differ(client):
    def ask(seed):
        return chat(client, "once upon a time", seed=seed, max_tokens=32).choices[0].message.content

    assert ask(1) == ask(1)
    assert len({ask(seed) for seed in range(5)}) > 1


def test_n_choices(client):
    answer = chat(client, "hello", n=3, max_tokens=16)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) > 1
    texts = ["", "", ""]
    for chunk in chat(client, "hello", n=3, max_tokens=16, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == [choice.message.content for choice in answer.choices]


def test_completion_of_several_prompts(client):
    options = dict(model="m", max_tokens=8, **GREEDY)
    answer = client.completions.create(prompt=["the cat", "a dog"], n=2, **options)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
    lone = [client.completions.create(prompt=prompt, **options).choices[0].text for prompt in ("the cat", "a dog")]
    assert [choice.text for choice in answer.choices] == [lone[0], lone[0], lone[1], lone[1]]


def test_token_ids_as_prompt(client):
    answer = client.completions.create(model="m", prompt=[[5, 6, 7], [8, 9]], max_tokens=4, **GREEDY)
    assert len(answer.choices) == 2 and answer.usage.prompt_tokens == 5


def test_completion_default_is_sixteen_tokens(client):
    answer = client.completions.create(model="m", prompt="the", extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 16 and answer.choices[0].finish_reason == "length"


def test_chat_logprobs(client):
    answer = chat(client, "hello", logprobs=True, top_logprobs=3, max_tokens=5, **GREEDY)
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    for entry in content:
        assert entry.logprob <= 0 and len(entry.top_logprobs) == 3
        assert bytes(entry.bytes).decode(errors="replace") == entry.token or "\ufffd" in entry.token
        assert max(top.logprob for top in entry.top_logprobs) == pytest.approx(entry.logprob)  # greedy


def test_echo_with_logprobs_as_evaluation_harnesses_ask(client):
    ids = [5, 6, 7, 8]
    body = dict(model="m", prompt=[ids], echo=True, logprobs=1, temperature=0, extra_body={"seed": 1234})
    scored = client.completions.create(max_tokens=0, **body).choices[0]
    assert scored.finish_reason == "length"
    logprobs = scored.logprobs
    assert len(logprobs.tokens) == len(ids) == len(logprobs.token_logprobs) == len(logprobs.text_offset)
    assert logprobs.token_logprobs[0] is None and logprobs.top_logprobs[0] is None
    assert all(value <= 0 for value in logprobs.token_logprobs[1:])
    longer = client.completions.create(max_tokens=1, **body).choices[0]
    assert longer.logprobs.token_logprobs[: len(ids)] == logprobs.token_logprobs
    assert longer.text.startswith(scored.text)


def test_prompt_logprobs_in_vllms_shape(client):
    ids = [5, 6, 7, 8]
    extra = {"prompt_logprobs": 2, "return_token_ids": True, "ignore_eos": True}
    answer = client.completions.create(model="m", prompt=ids, max_tokens=3, logprobs=1, extra_body=extra, **GREEDY)
    choice = answer.choices[0]
    shown = choice.model_extra["prompt_logprobs"]
    assert len(shown) == 4 and shown[0] is None and all(str(i) in entry for i, entry in zip(ids[1:], shown[1:]))
    assert len(choice.logprobs.tokens) == 3 == len(choice.model_extra["token_ids"])
    scored = client.completions.create(model="m", prompt=ids, max_tokens=0, logprobs=2, echo=True).choices[0].logprobs
    assert [entry[str(i)]["logprob"] for i, entry in zip(ids[1:], shown[1:])] == scored.token_logprobs[1:]
    talk = chat(client, "hello", max_tokens=2, extra_body={"prompt_logprobs": 0})
    assert len(talk.model_extra["prompt_logprobs"]) == talk.usage.prompt_tokens


def test_stop_strings(client):
    text = chat(client, "hello", max_tokens=40, **GREEDY).choices[0].message.content
    assert len(text) > 12, text
    stop = text[8:10]
    cut = chat(client, "hello", max_tokens=40, stop=[stop], **GREEDY).choices[0]
    assert cut.message.content == text[: text.index(stop)] and cut.finish_reason == "stop"
    assert cut.model_extra["stop_reason"] == stop
    streamed, reason = joined(chat(client, "hello", max_tokens=40, stop=[stop], stream=True, **GREEDY))
    assert (streamed, reason) == (cut.message.content, "stop")


def test_max_tokens_beyond_the_context_is_clamped(client):
    extra = {"ignore_eos": True}
    answer = client.completions.create(model="m", prompt=[5] * 2040, max_tokens=10**9, extra_body=extra)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.total_tokens in (2048, 2049)  # the last token needs no room of its own


@pytest.mark.parametrize(
    "field, value",
    [
        ("temperature", "hot"),
        ("top_p", 2),
        ("n", 0),
        ("max_tokens", -5),
        ("logit_bias", {"x": 1}),
        ("response_format", {"type": "json_object"}),
        ("tools", [{"type": "function", "function": {"name": "f", "parameters": {}}}]),
        ("stop", [""]),
    ],
)
def test_bad_fields_are_named(client, field, value):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, "hello", extra_body={field: value})
    assert caught.value.param == field and caught.value.type == "invalid_request_error"
    assert field in caught.value.message


def test_images_are_refused_by_name(client):
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": [part]}])
    assert caught.value.param == "messages[0].content[0].type"


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="m", prompt=[5] * 5000, max_tokens=1)
    assert caught.value.code == "context_length_exceeded"
    assert "5000" in caught.value.message and "2048" in caught.value.message


def test_text_parts_and_roles(client):
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "again"},
    ]
    answer = client.chat.completions.create(model="m", messages=messages, max_tokens=4)
    assert answer.usage.prompt_tokens > 0


def test_unknown_fields_and_nulls_are_fine(client):
    nulls = dict.fromkeys(["temperature", "stop", "tools", "response_format", "logit_bias", "top_k", "seed", "stream_options"])
    extra = {"separate_reasoning": True, "return_hidden_states": False, "tools": [], "user": "u", "whatever": {"x": [1]}}
    assert chat(client, "hello", max_tokens=2, extra_body=nulls | extra).choices


def test_sixteen_streams_give_the_texts_of_sixteen_lone_runs(client, server):
    prompts = [f"story number {i} about " + "the cat and " * (i * 3) for i in range(16)]

    def stream(i):
        options = GREEDY if i % 2 else dict(temperature=1.0, seed=1000 + i)
        return joined(chat(client, prompts[i], stream=True, max_tokens=32, **options))

    lone = [stream(i) for i in range(16)]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        together = list(pool.map(stream, range(16)))
    assert together == lone
    status, body = server.get("/v1/engine")
    stats = json.loads(body)
    assert status == 200 and stats["kv_live_blocks"] == 0 and stats["running"] == 0, stats
