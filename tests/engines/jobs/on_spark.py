"""Jobs of horovod.spark on a local Spark: argv is the file for the results and the backends.
{backend: facts of all ranks}"""

import json
import os
import sys
from pathlib import Path

import horovod.spark
from pyspark.sql import SparkSession
from training import train


def run(backend):
    os.environ["HOROVOD_CPU_OPERATIONS"] = backend  # of the driver, which hands its choice on
    return horovod.spark.run(train, num_proc=2, use_gloo=True, env=dict(os.environ))


output, *backends = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
try:
    found = {backend: run(backend) for backend in backends}
finally:
    spark.stop()
Path(output).write_text(json.dumps(found))
