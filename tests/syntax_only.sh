#!/bin/sh
# Calls a compiler for the syntax alone; tests/alone.sh makes CMake call it in front of the compiler.
exec "$@" -fsyntax-only
