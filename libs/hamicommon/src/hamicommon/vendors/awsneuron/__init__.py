"""AWS Neuron."""
