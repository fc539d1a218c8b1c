"""What loader.cpp measures, with torchvision's ImageFolder and PyTorch's DataLoader, whose workers are processes:
loader_torch.py DIR WORKERS BATCH EPOCHS"""
import sys
import time

import torch
from torchvision import datasets, transforms

folder, (workers, batch, epochs) = sys.argv[1], map(int, sys.argv[2:])
torch.set_num_threads(1)
images = datasets.ImageFolder(folder, transforms.Compose([
    transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
    transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]))
loader = torch.utils.data.DataLoader(images, batch, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
for epoch in range(epochs):
    begin, count = time.perf_counter(), 0
    for x, _ in loader:
        count += len(x)
    print(f"{count / (time.perf_counter() - begin):.1f}", flush=True)
