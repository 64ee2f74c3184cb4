"""Renders conversations with the chat templates of model directories, as transformers does it.

Usage: python render_chats.py DIRECTORY...

Prints a JSON list: for each directory and conversation the messages, the options, and the text, or
null where the template raises.
"""

import json
import sys
from pathlib import Path

import jinja2
from transformers.utils.chat_template_utils import render_jinja_template

HI = {"role": "user", "content": "hi"}
HELLO = {"role": "assistant", "content": "hello\n"}
CONVERSATIONS = [
    [HI],
    [{"role": "system", "content": "  be brief  "}, HI],
    [HI, HELLO, {"role": "user", "content": "a 'quoted' <word> & \"more\" é\n\nend "}],
    [HI, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nyes"}, HI],
    [HI, HELLO],
    [HELLO, HI],
    [{"role": "narrator", "content": "once"}],
    [HI, HI],
]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city, today's",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1}},
            "required": ["city"],
        },
    },
}
OPTIONS = [
    {"add_generation_prompt": True},
    {"add_generation_prompt": False},
    {"add_generation_prompt": True, "enable_thinking": False},
    {"add_generation_prompt": True, "tools": [TOOL]},
]


def template_and_tokens(directory: Path) -> tuple[str, dict]:
    config = json.loads((directory / "tokenizer_config.json").read_text())
    file = directory / "chat_template.jinja"
    template = file.read_text() if file.exists() else config["chat_template"]
    tokens = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        token = config.get(name)
        if token is not None:
            tokens[name] = token if isinstance(token, str) else token["content"]
    return template, tokens


def main(directories: list[str]) -> None:
    results = []
    for directory in directories:
        template, tokens = template_and_tokens(Path(directory))
        for messages in CONVERSATIONS:
            for options in OPTIONS:
                arguments = dict(options)
                try:
                    rendered, _ = render_jinja_template(
                        conversations=[messages],
                        chat_template=template,
                        tools=arguments.pop("tools", None),
                        add_generation_prompt=arguments.pop("add_generation_prompt"),
                        **arguments,
                        **tokens,
                    )
                    text = rendered[0]
                except jinja2.exceptions.TemplateError:
                    text = None
                results.append(
                    {"directory": directory, "messages": messages, "options": options, "text": text}
                )
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1:])
