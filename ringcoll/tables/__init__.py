"""Parameter tables: tensors and rows that live in servers, and are changed by pushes.

>>> table = store.table("embedding", row_shape=64, rule=ringcoll.rules.Adagrad(lr=0.1))
>>> rows = table.pull(ids)
>>> table.push(ids, gradients)
"""

from ringcoll.tables.spec import Normal, Uniform
from ringcoll.tables.table import Table, TableCall

__all__ = ["Normal", "Table", "TableCall", "Uniform"]
