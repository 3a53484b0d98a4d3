"""fastagg's classes in the place of other frameworks' own, for these frameworks' unit tests; see .ci/theirs.py.

Each module names the framework's repository, the files with tests of parts that fastagg replaces, and the classes that
stand in. ``expected.toml`` lists the tests that cannot pass, each with its reason.

APPFL's repository has no tests of its aggregators: those of its virtual-time simulator run with pretended servers.
Flower's has none of its wrappers for differential privacy; tests/integrations/test_flower_wrappers.py compares them.
"""
