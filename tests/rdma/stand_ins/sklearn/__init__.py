"""In place of scikit-learn, which takes an emulated processor a minute to import."""
