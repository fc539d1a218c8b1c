"""ONNX Runtime and OpenVINO as contenders of inference in benchmarks/compare: each compiles the network that PyTorch
exports, with as many threads as the others have."""
import os
import tempfile

import torch


def exported(model, images, folder):
    path = f"{folder}/model.onnx"
    with torch.no_grad():
        torch.onnx.export(model, (images,), path, dynamo=True, verbose=False)
    return path


def onnx_runtime(model, images, threads):
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    with tempfile.TemporaryDirectory() as folder:
        session = onnxruntime.InferenceSession(exported(model, images, folder), options)
    name = session.get_inputs()[0].name
    return lambda: session.run(None, {name: images.numpy()})[0]


def open_vino(model, images, threads, precision):
    import openvino
    with tempfile.TemporaryDirectory() as folder:
        compiled = openvino.Core().compile_model(exported(model, images, folder), "CPU", {
            "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "bf16" if precision == "bfloat16" else "f32"})
    request = compiled.create_infer_request()
    return lambda: request.infer([images.numpy()])[compiled.output(0)]


def classifier(how, model, images, precision):
    """Returns a function that classifies the images and returns the logits as an array."""
    threads = int(os.environ["OMP_NUM_THREADS"])
    model, images = model.to(memory_format=torch.contiguous_format), images.contiguous()
    if how == "ONNX Runtime":
        return onnx_runtime(model, images, threads)
    return open_vino(model, images, threads, precision)
