"""hami-webhook: admission of pods and ResourceQuotas."""
