// The program `attune`: all of it is in cli.cpp, which a library can export as well.
#include "tool/commands/commands.h"

int main(int argc, char** argv) { return attune_tool_main(argc, argv); }
