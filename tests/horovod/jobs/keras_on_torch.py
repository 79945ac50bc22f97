"""Keras on torch: DistributedOptimizer says that it does not average there."""

import horovod.keras as hvd
import keras
import results

hvd.init()
try:
    hvd.DistributedOptimizer(keras.optimizers.SGD())
    message = ""
except ValueError as error:
    message = str(error)
results.write(hvd.rank(), message=message)
