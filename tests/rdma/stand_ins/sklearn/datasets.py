"""Made-up images with the shapes of scikit-learn's digits."""

from types import SimpleNamespace

import numpy as np


def load_digits():
    random = np.random.default_rng(7)
    images = random.integers(0, 17, (400, 8, 8)).astype(float)
    return SimpleNamespace(images=images, target=random.integers(0, 10, 400))
