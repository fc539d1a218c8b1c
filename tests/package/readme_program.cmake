# Fails unless README holds the text of PROGRAM.
file(READ ${README} readme)
file(READ ${PROGRAM} program)
string(FIND "${readme}" "${program}" at)
if(at LESS 0)
  message(FATAL_ERROR "README.md does not show ${PROGRAM} as it is: copy it there again")
endif()
