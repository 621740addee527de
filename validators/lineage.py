"""The two headers our sink writes on every record, as text that any client can read.

topicproof-lineage      `<source topic>/<partition>/<offset>/<output index>`: the input this record was made from
topicproof-transaction  `<transactional id>/<sequence>/<attempt>/<task>/<total>`: the transaction it was written in

Neither a topic name nor a transactional id of ours can hold a slash. Sequence and attempt count from 1, task is a token
of the Spark task, total is the number of records of the transaction over all sink partitions (which makes a torn
transaction visible to anybody).
"""

from __future__ import annotations

LINEAGE_HEADER = "topicproof-lineage"
TRANSACTION_HEADER = "topicproof-transaction"
