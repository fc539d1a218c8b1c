// train_resnet: trains a ResNet that classifies images, on one rank or many (train/program.cpp).
#include "train/options.h"

int main(int argc, char** argv) {
  return tutti::examples::run_program(argc, argv, tutti::examples::Task::classification);
}
