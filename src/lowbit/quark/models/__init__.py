"""Changes of quantized models that Quark offers as tools."""
