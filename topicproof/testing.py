"""Names for tests of your own pipeline, beside the fixtures of `topicproof.pytest_plugin`.

`Rule`, `Api` and `How` describe network faults for `topicproof_proxy`; the other names are the
types of what the fixtures give.
"""

import warnings

with warnings.catch_warnings():
    # kafka-python reads its message schemas with functions that Python wants replaced.
    warnings.simplefilter("ignore", DeprecationWarning)
    from topicproof.backend.faults.proxy import How, Proxy, Rule
    from topicproof.backend.faults.requests import Api
    from topicproof.backend.harness.broker import Broker
    from topicproof.backend.harness.program import Program
    from topicproof.backend.harness.scratch_topics import Topic

__all__ = ["Api", "Broker", "How", "Program", "Proxy", "Rule", "Topic"]
