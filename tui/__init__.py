"""The chat on a whole screen; installs as `edgespec.tui`.

Who knows what
    messages   frozen values that the others exchange; imports nothing of the rest
    bridge     alone opens runtimes and fetches models: one thread that loads and answers, one for
               each download. It queues events; the app takes them ten times a second
               (`Bridge.drain`). A thread that computes never calls into the screen, and the screen
               never waits for it.
    app        owns the bridge, the stores and the conversation's turns. Hands each event to its
               own handlers and then to every open screen that has `handle(event)`.
    widgets/   show messages; they know neither app nor bridge, and say what the person did with
               Textual messages of their own
    screens/   ask the person something and `dismiss` with the answer
    history, saving, settings, pairs, export, clipboard
               the stores and the outside world; no Textual in them

Who says what
    app -> bridge      open(choice, settings) -> load number · cancel_load() · ask(Ask) · stop()
                       download(pair) · cancel_download(pair) · close(timeout) -> bool
    bridge -> app      messages.Event, in order; a load number or a turn number on each
    app -> saving      Saving.put(writer, index, turn): the conversation's turn `index` is this one
                       now, and none follows it (a new turn, one asked again, one continued). A
                       thread calls Writer.put (fsync; OSError); the app takes failures ten times
                       a second. What else reads or changes the history waits for it (`settle`).
                       Another Saving takes settings, preferences, copies and exports (`later`)
    picker -> app      dismiss(Choice), after `app.bridge.download(pair)` where it was needed; it
                       sees Downloading and DownloadEnded through `handle`
    history list       dismiss(conversation id) to resume it
    settings screen    dismiss(Settings)

Invariant: nothing that a model, a person, a path or an error says is ever read as markup or reaches
the terminal as a control sequence.
"""
