"""The pure rules of admission: what the webhook answers to the creation of a pod."""
