# SPDX-License-Identifier: Apache-2.0
"""attune as an attention backend of vLLM, outside its tree. Where attune is installed, vLLM finds register() as a
plugin, and runs attune with --attention-backend CUSTOM.

    llm = vllm.LLM(model, attention_config={"backend": "CUSTOM"})"""

from __future__ import annotations

import logging

__all__ = ["register"]

_CLASS = "attune.vllm.backend.AttuneBackend"


def register() -> None:
    """Gives attune the name CUSTOM in vLLM's registry of attention backends. vLLM calls it in each of its processes, by
    the entry point of the group vllm.general_plugins. A backend that another plugin registered stays."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    custom = AttentionBackendEnum.CUSTOM
    if custom.is_overridden() and custom.get_path() != _CLASS:
        logging.getLogger(__name__).warning("attune.vllm: the backend CUSTOM is %s, so attune is not registered; "
                                            "attune.vllm.register() after clear_override() registers it",
                                            custom.get_path())
        return
    register_backend(custom, _CLASS)
