package extension

import (
	"io"
	"net/http"
	"slices"
)

// connect answers a connect subresource: it echoes the body, or what follows an upgrade.
func connect(w http.ResponseWriter, r *http.Request, subresource string) {
	if !slices.Contains(connectSubresources(), subresource) {
		writeStatus(w, http.StatusNotFound, "no such subresource")
		return
	}
	if protocol := r.Header.Get("Upgrade"); protocol != "" {
		upgrade(w, protocol)
		return
	}
	echo(w, r)
}

// upgrade switches to any protocol, and echoes bytes until the client ends the connection.
func upgrade(w http.ResponseWriter, protocol string) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return // over HTTP/2, which has no upgrades
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+protocol+"\r\n\r\n")
	_, _ = io.Copy(conn, rw)
}

// echo streams the body and its trailers back.
func echo(w http.ResponseWriter, r *http.Request) {
	controller := http.NewResponseController(w)
	_ = controller.EnableFullDuplex() // HTTP/1.1 reads the whole body first by default; HTTP/2 does not support this, or need it
	w.Header().Set("Content-Type", "application/octet-stream")
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Body.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return
			}
			_ = controller.Flush()
		}
		if err != nil {
			break
		}
	}
	for name, values := range r.Trailer {
		for _, v := range values {
			w.Header().Add(http.TrailerPrefix+name, v)
		}
	}
}
