"""Requests about groups that kafka-python does not have, in its own format of message schemas.

Each class reads the file of its name in this folder. The fields, their order and their versions are
those of the protocol: KIP-848 for the consumer protocol, KIP-932 for share groups.
"""

from __future__ import annotations

import sys

from kafka.protocol.api_message import ApiMessage

_HERE = sys.modules[__name__]


class ConsumerGroupDescribeRequest(ApiMessage, load_json=_HERE):  # type: ignore[call-arg,misc]
    """Asks for the members of groups of the consumer protocol (KIP-848)."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=_HERE):  # type: ignore[call-arg,misc]
    """Names each member's partitions, those it has now and those it shall have."""


class ShareGroupDescribeRequest(ApiMessage, load_json=_HERE):  # type: ignore[call-arg,misc]
    """Asks for the members of share groups (KIP-932, since Kafka 4.1)."""


class ShareGroupDescribeResponse(ApiMessage, load_json=_HERE):  # type: ignore[call-arg,misc]
    """Names each member's partitions; several members may share one."""


class DescribeShareGroupOffsetsRequest(ApiMessage, load_json=_HERE):  # type: ignore[call-arg,misc]
    """Asks where share groups begin to read (KIP-932)."""


class DescribeShareGroupOffsetsResponse(ApiMessage, load_json=_HERE):  # type: ignore[call-arg,misc]
    """Names start offsets, -1 where the group acknowledged nothing yet, and from version
    1 on a lag in offsets (KIP-1226)."""
