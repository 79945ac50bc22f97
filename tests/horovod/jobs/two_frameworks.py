"""horovod.torch and horovod.tensorflow in one process: two copies of the backend."""

import horovod.tensorflow as hvd_tensorflow
import horovod.torch as hvd_torch
import results
import tensorflow as tf
import torch

hvd_tensorflow.init()
hvd_torch.init()
rank = hvd_torch.rank()
assert rank == hvd_tensorflow.rank()

by_torch = hvd_torch.allreduce(torch.tensor([0.0, 1.0]) + rank, op=hvd_torch.Sum)
by_tensorflow = hvd_tensorflow.allreduce(tf.constant([0.0, 1.0]) + rank, op=hvd_tensorflow.Sum)
gathered = hvd_tensorflow.allgather(tf.fill([rank + 1], tf.cast(rank, tf.uint8)))
results.write(
    rank,
    torch=by_torch.tolist(),
    tensorflow=by_tensorflow.numpy().tolist(),
    gathered=gathered.numpy().tolist(),
)
hvd_torch.shutdown()
hvd_tensorflow.shutdown()
