// Package tlsrecords is a TLS 1.3 client that can write any records: many in one packet, empty
// ones, and key updates (RFC 8446 §4.6.3), for which crypto/tls has no public function. crypto/tls
// does the handshake and all reading. Afterwards this package encrypts what it sends, with the
// secret from tls.Config.KeyLogWriter. A Conn is for one writer and one reader.
package tlsrecords

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"net"
	"strings"
)

// The content types (RFC 8446 §5.1).
const (
	typeHandshake = 22
	typeData      = 23
)

// Conn is the client's end of a connection.
type Conn struct {
	*tls.Conn // for reading and closing
	raw       net.Conn
	hash      func() hash.Hash
	keySize   int
	secret    []byte
	aead      cipher.AEAD
	iv        []byte
	seq       uint64
}

// Dial connects. It replaces the config's versions and key log.
func Dial(ctx context.Context, address string, config *tls.Config) (*Conn, error) {
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("dialling: %w", err)
	}
	var keys bytes.Buffer
	config = config.Clone()
	config.MinVersion, config.MaxVersion, config.KeyLogWriter = tls.VersionTLS13, tls.VersionTLS13, &keys
	c := &Conn{Conn: tls.Client(raw, config), raw: raw}
	if err := c.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, fmt.Errorf("handshaking: %w", err)
	}
	if err := c.begin(keys.String()); err != nil {
		_ = raw.Close()
		return nil, err
	}
	return c, nil
}

func (c *Conn) begin(keys string) error {
	switch suite := c.ConnectionState().CipherSuite; suite {
	case tls.TLS_AES_128_GCM_SHA256:
		c.hash, c.keySize = sha256.New, 16
	case tls.TLS_AES_256_GCM_SHA384:
		c.hash, c.keySize = sha512.New384, 32
	default:
		return fmt.Errorf("cipher suite %s is not supported", tls.CipherSuiteName(suite))
	}
	for line := range strings.Lines(keys) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "CLIENT_TRAFFIC_SECRET_0" {
			secret, err := hex.DecodeString(f[2])
			if err != nil {
				return fmt.Errorf("reading the key log: %w", err)
			}
			return c.use(secret)
		}
	}
	return errors.New("no secret in the key log")
}

// use derives the keys of a secret (§7.3).
func (c *Conn) use(secret []byte) error {
	key, err := c.expand(secret, "key", c.keySize)
	if err != nil {
		return err
	}
	if c.iv, err = c.expand(secret, "iv", 12); err != nil {
		return err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return fmt.Errorf("making a cipher: %w", err)
	}
	c.aead, err = cipher.NewGCM(block)
	c.secret, c.seq = secret, 0
	return err //nolint:wrapcheck // never occurs with AES
}

// expand is HKDF-Expand-Label with an empty context (§7.1).
func (c *Conn) expand(secret []byte, label string, n int) ([]byte, error) {
	label = "tls13 " + label
	info := append([]byte{byte(n >> 8), byte(n), byte(len(label))}, label...)
	key, err := hkdf.Expand(c.hash, secret, string(append(info, 0)), n)
	if err != nil {
		return nil, fmt.Errorf("deriving %s: %w", label, err)
	}
	return key, nil
}

// AppendData appends a record of application data; it may be empty.
func (c *Conn) AppendData(to, content []byte) []byte { return c.seal(to, typeData, content) }

// AppendKeyUpdate appends a key update and changes the keys. answer requests one from the peer.
func (c *Conn) AppendKeyUpdate(to []byte, answer bool) ([]byte, error) {
	message := []byte{24, 0, 0, 1, 0} // key_update, a length of 1
	if answer {
		message[4] = 1
	}
	to = c.seal(to, typeHandshake, message)
	next, err := c.expand(c.secret, "traffic upd", c.hash().Size())
	if err != nil {
		return nil, err
	}
	return to, c.use(next)
}

func (c *Conn) seal(to []byte, kind byte, content []byte) []byte {
	n := len(content) + 1 + c.aead.Overhead()
	header := []byte{typeData, 3, 3, byte(n >> 8), byte(n)}
	nonce := bytes.Clone(c.iv)
	low := nonce[len(nonce)-8:]
	binary.BigEndian.PutUint64(low, binary.BigEndian.Uint64(low)^c.seq)
	c.seq++
	return c.aead.Seal(append(to, header...), nonce, append(bytes.Clone(content), kind), header)
}

// Send sends records as they are.
func (c *Conn) Send(records []byte) error {
	_, err := c.raw.Write(records)
	return err //nolint:wrapcheck // this is the connection
}

// Write sends one record for each call.
func (c *Conn) Write(p []byte) (int, error) {
	if err := c.Send(c.AppendData(nil, p)); err != nil {
		return 0, err
	}
	return len(p), nil
}
