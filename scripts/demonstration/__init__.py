"""The demo: the real agent on an emulated driver, with a stand-in kubelet and a stand-in API server around it.

`__main__` reads the command line, `acts` is the play, `cast` the pods, `stage` what runs, `greedy` the program that
takes all it can get and `container` what it finds, `promises` what must hold, `show` what people see, `document` what
`--output json` prints.
"""
