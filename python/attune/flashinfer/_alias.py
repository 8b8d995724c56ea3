# SPDX-License-Identifier: Apache-2.0
"""attune under flashinfer's names, for programs that import flashinfer."""

from __future__ import annotations

from .._aliases import Aliases

_ALIASES = Aliases({
    "flashinfer": "attune.flashinfer",
    **{f"flashinfer.{name}": f"attune.flashinfer.{name}"
       for name in ("cascade", "decode", "page", "prefill", "quantization")}})


def install() -> None:
    """From now on, `import flashinfer` loads attune in this process, with its modules cascade, decode, page, prefill
    and quantization, and nothing else. Names imported from an installed flashinfer before are not affected."""
    _ALIASES.install()


def uninstall() -> None:
    """Restores the modules that were imported under these names before install(), if any."""
    _ALIASES.uninstall()
