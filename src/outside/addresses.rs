//! Tells addresses of the public internet from all others.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether the address belongs to the public internet, and so is in none of IANA's special-purpose ranges (RFC 6890).
pub fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    !(a == 0
        || a >= 224
        || ip.is_loopback()
        || ip.is_private()
        || ip.is_link_local()
        || ip.is_documentation()
        || (a == 100 && (64..128).contains(&b))
        || (a == 192 && b == 0 && c == 0)
        // 192.88.99.0/24: relays from IPv6
        || (a == 192 && b == 88 && c == 99)
        || (a == 198 && (18..20).contains(&b)))
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    let s = ip.segments();
    let embedded = |high: u16, low: u16| is_public_v4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)));
    if s[..5] == [0; 5] && s[5] == 0xffff {
        return embedded(s[6], s[7]);
    }
    match s[0] {
        // NAT64, whose local prefix 64:ff9b:1::/48 leads nowhere public
        0x64 if s[1..6] == [0xff9b, 0, 0, 0, 0] => embedded(s[6], s[7]),
        // 6to4
        0x2002 => embedded(s[1], s[2]),
        // protocols (Teredo among them), documentation
        0x2001 if s[1] < 0x200 || s[1] == 0xdb8 => false,
        0x3fff if s[1] < 0x1000 => false,
        // All global unicast addresses in use are in 2000::/3.
        first => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::is_public;

    #[test]
    fn only_public_addresses_are_public() {
        for ip in ["1.1.1.1", "172.32.0.1", "100.128.0.1", "198.20.0.1", "2606:4700::1111", "64:ff9b::101:101", "::ffff:8.8.8.8"] {
            assert!(is_public(ip.parse().unwrap()), "{ip}");
        }
        for ip in [
            "127.0.0.1",
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "0.0.0.0",
            "100.64.0.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "192.0.0.8",
            "::",
            "::1",
            "fe80::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "2002:7f00:1::",
            "::7f00:1",
            "2001:db8::1",
            "2001::1",
            "2001:20::1",
            "3fff::1",
            "64:ff9b:1::808:808",
            "64:ff9b::7f00:1",
            "2002:c0a8:1::",
            "2002:a9fe:a9fe::",
            "::ffff:10.0.0.1",
            "192.88.99.1",
            "240.0.0.1",
            "ff0e::1",
        ] {
            assert!(!is_public(ip.parse().unwrap()), "{ip}");
        }
    }
}
