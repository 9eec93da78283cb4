"""Context policies through the real openai package: answers past the context, and what they say was dropped."""

import openai
import pytest

CONTEXT = 96


@pytest.fixture
def client_of(start_server, tiny_models):
    def make(*options):
        server = start_server(tiny_models["tiny-llama"], "--ctx-size", str(CONTEXT), *options)
        return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=600)

    return make


def talk(n_turns):
    messages = [{"role": "system", "content": "s"}]
    for _ in range(n_turns):
        messages += [{"role": "user", "content": "abc"}, {"role": "assistant", "content": "def"}]
    return messages + [{"role": "user", "content": "abc"}]


def ask(client, messages, policy=None, **options):
    body = {"ignore_eos": True} | ({"context_policy": policy} if policy else {})
    return client.chat.completions.create(
        model="any", messages=messages, temperature=0, extra_body=body, **({"max_tokens": 200} | options)
    )


def test_requests_choose_their_policy(client_of):
    client = client_of()
    assert ask(client, talk(0)).usage.completion_tokens < CONTEXT  # refuse: an answer ends with the context
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, talk(20))
    assert refused.value.code == "context_length_exceeded" and str(CONTEXT) in str(refused.value)
    assert "set context_policy to drop_turns or sinks" in str(refused.value)

    sinks = ask(client, talk(20), {"type": "sinks", "keep_tokens": 8})
    assert sinks.usage.completion_tokens == 200 and sinks.choices[0].finish_reason == "length"
    dropped = sinks.usage.context
    assert dropped["policy"] == "sinks" and dropped["dropped_turns"] == 0 and dropped["dropped_tokens"] % 44 == 0
    left = sinks.usage.prompt_tokens + 200 - 44 * (dropped["edits"] - 1)  # the prompt was cut once, the list each time
    assert CONTEXT - 44 <= left <= CONTEXT

    turns = ask(client, talk(20), "drop_turns")
    assert turns.usage.completion_tokens == 200 and turns.usage.prompt_tokens < CONTEXT
    assert turns.usage.context["dropped_turns"] == 20
    kept = ask(client, talk(20), "drop_turns", max_tokens=1)
    assert 0 < kept.usage.context["dropped_turns"] < 20
    same = ask(client, talk(20 - kept.usage.context["dropped_turns"]), max_tokens=1)
    assert same.usage.prompt_tokens == kept.usage.prompt_tokens
    assert same.choices[0].message.content == kept.choices[0].message.content

    for policy, options, field in [
        ("drop_turns", {"prompt": "no turns"}, "context_policy"),
        ({"type": "sinks", "keep_tokens": CONTEXT}, {"prompt": "hi"}, "context_policy.keep_tokens"),
    ]:
        with pytest.raises(openai.BadRequestError) as refused:
            client.completions.create(model="any", extra_body={"context_policy": policy}, **options)
        assert refused.value.param == field


def test_streams_under_the_servers_policy(client_of):
    client = client_of("--context-policy", "drop_turns")
    whole = ask(client, talk(20))
    text, last = "", None
    for chunk in ask(client, talk(20), stream=True):
        text += chunk.choices[0].delta.content or ""
        last = chunk
    assert text == whole.choices[0].message.content
    assert last.choices[0].finish_reason == "length"
    assert last.context == whole.usage.context
    assert ask(client, talk(0), "refuse").usage.completion_tokens < CONTEXT
    assert "context" not in client.completions.create(model="any", prompt="hi").usage.model_extra
