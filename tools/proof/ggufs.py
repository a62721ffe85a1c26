"""Rewriting GGUF files: a copy with other metadata, other types, or other tensors."""
import gguf
import numpy as np

Q = gguf.GGMLQuantizationType


def copy_metadata(writer, reader, skip=(), change={}):
    """All keys but the architecture, which the writer has already; `change` replaces values."""
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture" or key in skip:
            continue
        value, kind = change.get(key, field.contents()), field.types[0]
        if kind == gguf.GGUFValueType.ARRAY:
            writer.add_array(key, value)
        else:
            writer.add_key_value(key, value, kind)


def shape_of(tensor):
    """Rows last, as numpy has it."""
    return tuple(int(n) for n in reversed(tensor.shape))


def write(writer, tensors):
    """Writes the file: `tensors` is a list of (name, shape, type, function that makes the data), called one at a time."""
    for name, shape, kind, _ in tensors:
        per, size = gguf.GGML_QUANT_SIZES[kind]
        total = int(np.prod(shape)) // per * size
        plain = {Q.F32: np.float32, Q.F16: np.float16}.get(kind)
        stored = shape if plain else (*shape[:-1], shape[-1] // per * size)
        writer.add_tensor_info(name, stored, np.dtype(plain or np.uint8), total, raw_dtype=None if plain else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, shape, kind, make in tensors:
        per, size = gguf.GGML_QUANT_SIZES[kind]
        data = np.ascontiguousarray(make()).view(np.uint8).reshape(-1)
        assert data.size == int(np.prod(shape)) // per * size, name
        writer.write_tensor_data(data)
    writer.close()


def widen(src, dst, change={}):
    """The same model with every tensor in F32, so that no engine rounds activations; `change` replaces metadata."""
    reader = gguf.GGUFReader(src)
    writer = gguf.GGUFWriter(dst, reader.fields["general.architecture"].contents())
    copy_metadata(writer, reader, skip=("general.file_type",), change=change)
    values = lambda t: lambda: gguf.dequantize(np.asarray(t.data), t.tensor_type).astype(np.float32)
    write(writer, [(t.name, shape_of(t), Q.F32, values(t)) for t in reader.tensors])


def types(path):
    """How many tensors of which type, the most first; norms and other F32 vectors left out."""
    count = {}
    for t in gguf.GGUFReader(path).tensors:
        if len(t.shape) > 1:
            count[t.tensor_type.name] = count.get(t.tensor_type.name, 0) + 1
    return " ".join(f"{n}×{name}" for name, n in sorted(count.items(), key=lambda kv: -kv[1]))
