// train_segmentation: trains a network that classifies each pixel, on one rank or many. It is the
// trainer of train_resnet (../train/program.cpp) with another task.
#include "../train/options.h"

int main(int argc, char** argv) {
  return tutti::examples::run_program(argc, argv, tutti::examples::Task::segmentation);
}
