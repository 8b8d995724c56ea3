#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`attune remote` with Modal's own client and Modal's own mock server, where both are here.

ATTUNE_MODAL_TESTS names the folder py/test of Modal's repository at the version of the installed client, and its tests'
packages are installed: pip install modal pytest pytest-asyncio.
"""
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import standin  # noqa: E402
from providers_test import Provider, at_once  # noqa: E402


class Mock(Provider):
    def cloud(self, faults=()):
        self.servers += 1
        made = standin.MockModal(os.path.join(self.folder, f"cloud{self.servers}"), faults=faults)
        self.addCleanup(made.close)
        return made

    def runs(self, faults):
        cloud = self.cloud(faults)
        self.expect_run(cloud, self.bench(cloud, "modal:L4"))
        asked = cloud.machines()[0]["body"]
        self.assertEqual((asked["gpu"], asked["gpus"], asked["idle"]), ("L4", 1, 600))
        # $0.90 at the price of the list are some hours; the sandbox ends itself before.
        self.assertGreater(asked["timeout"], 600)
        self.assertLess(asked["timeout"] / 3600 * 0.8, 0.9)

    def test_a_run_brings_rows(self):
        at_once(self, [lambda t, f=f: t.runs(f) for f in (
            (), ("lost=0.5", "broken=0.05", "delete_fails=2", "unready=1"))])

    def test_refusals_are_one_sentence(self):
        cloud = self.cloud()
        self.expect_refusal(self.bench(cloud, "modal:L4", MODAL_TOKEN_SECRET="wrong"),
                            "Modal does not accept MODAL_TOKEN_ID and MODAL_TOKEN_SECRET: AuthError")
        self.expect_refusal(self.bench(cloud, "modal:L4", MODAL_TOKEN_ID=None, MODAL_TOKEN_SECRET=None),
                            "Modal does not accept MODAL_TOKEN_ID and MODAL_TOKEN_SECRET: AuthError")
        self.expect_refusal(self.bench(cloud, "modal:L4", MODAL_SERVER_URL="http://127.0.0.1:1"), "modal:L4: Modal does not answer")
        self.expect_clean(cloud, created=0)

    def test_reap_finds_what_a_lost_journal_left(self):
        self.reap_finds_what_a_lost_journal_left(self.cloud(), "modal:L4")


if __name__ == "__main__":
    if why := standin.without_libcurl() or standin.without_mock_modal():
        print(f"left out: {why}")
        sys.exit(77)
    unittest.main(verbosity=2)
