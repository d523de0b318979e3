"""Datasets that open images by OpenCV, in a module whose assertions pytest does not rewrite."""

import cv2
from torch.utils.data import Dataset


class Files(Dataset):
    def __init__(self, paths, transform):
        self.paths = [str(path) for path in paths]
        self.labels = list(range(len(self.paths)))
        self.transform = transform

    def __len__(self):
        return len(self.paths)


class Directly(Files):
    def __getitem__(self, index):
        image = cv2.imread(self.paths[index], flags=cv2.IMREAD_COLOR_RGB)
        assert image is not None, self.paths[index]
        return self.transform(image), self.labels[index]
