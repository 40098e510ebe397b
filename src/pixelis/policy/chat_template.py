"""The chat template in nano's checkpoints, for programs that build prompts by `apply_chat_template`.

Pixelis itself uses `chat_format`, which cuts a conversation into pieces of one kind; a test compares both texts.
"""

CHAT_TEMPLATE = """\
{%- macro spoken(content) -%}
{%- if content is string -%}{{- content -}}
{%- else -%}
{%- for part in content -%}
{%- if part.type == 'image' -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
{%- else -%}{{- part.text -}}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{{- '<|im_start|>user\\n<tool_response>\\n' + spoken(message.content) + '\\n</tool_response><|im_end|>\\n' -}}
{%- elif message.role == 'assistant' -%}
{{- '<|im_start|>assistant\\n' -}}
{%- set words = spoken(message.content or '') -%}
{%- if message.tool_calls -%}
{{- words + '\\n' if words else '' -}}
{%- for call in message.tool_calls -%}
{%- set asked = call.function if call.function else call -%}
{{- '<tool_call>{"name": "' + asked.name + '", "arguments": ' -}}
{{- asked.arguments if asked.arguments is string else asked.arguments | tojson -}}
{{- '}</tool_call>' -}}
{%- endfor -%}
{%- else -%}{{- words -}}{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- else -%}
{{- '<|im_start|>' + message.role + '\\n' + spoken(message.content) + '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""
