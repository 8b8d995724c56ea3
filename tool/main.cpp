// The program `attune`. Everything is in cli.cpp, which the shared library exports too.
#include "tool/commands/commands.h"

int main(int argc, char** argv) { return attune_tool_main(argc, argv); }
