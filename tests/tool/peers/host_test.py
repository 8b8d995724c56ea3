#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The script that hosts peers, without PyTorch and without the tool: what code of a peer raises is a sentence.

    host_test.py"""
import asyncio
import ctypes
import pathlib
import sys
import types
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tool/peers"))
import torch_peer


class Silent(Exception):
    def __str__(self):
        raise KeyboardInterrupt


def told(peer):
    text = ctypes.create_string_buffer(200)
    peer.message(ctypes.addressof(text), 200)
    return text.value.decode()


class Raised(unittest.TestCase):
    def test_whatever_a_peer_raises_is_its_message_and_a_failure(self):
        tool = types.SimpleNamespace(attune_peer_register=lambda peer: None)
        raised = {KeyboardInterrupt(): "KeyboardInterrupt", asyncio.CancelledError("x"): "CancelledError: x",
                  SystemExit(3): "SystemExit: 3", Silent(): "Silent", GeneratorExit(): "GeneratorExit",
                  ValueError("a \udcff\nb"): "ValueError: a \\udcff"}
        for error, text in raised.items():
            state = types.SimpleNamespace(note="", run=mock.Mock(side_effect=error))
            way = types.SimpleNamespace(prepare=lambda text: state)
            peer = torch_peer.register(tool, "dir/\udcff.py:f", way, "1", "")
            handle = peer.setup(b"{}")
            self.assertEqual(handle, 1)
            self.assertEqual(peer.run(handle), torch_peer.FAILED)
            self.assertEqual(told(peer), text)
            way.prepare = mock.Mock(side_effect=error)
            self.assertEqual(peer.setup(b"{}"), torch_peer.REFUSED)

    def test_an_async_function_is_refused(self):
        with mock.patch.dict(sys.modules, torch=mock.MagicMock()):
            import own

        async def later(q, k, v):
            return q

        def one_by_one(q, k, v):
            yield q

        for function in (later, one_by_one):
            with self.assertRaisesRegex(own.Refused, "is an async function or a generator"):
                own.Own(function)


if __name__ == "__main__":
    unittest.main()
